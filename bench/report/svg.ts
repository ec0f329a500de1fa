/** Used by all drawings: text that is safe in markup, and colours for light and dark backgrounds. Pure. */

export function escapeText(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`);
}

const light = {
  ground: '#ffffff',
  ink: '#1f2328',
  soft: '#59636e',
  rule: '#d1d9e0',
  good: '#1a7f37',
  bad: '#cf222e',
  series: ['#0969da', '#bc4c00', '#8250df', '#1a7f37', '#bf3989', '#4d5b68'],
};
const dark: typeof light = {
  ground: '#0d1117',
  ink: '#f0f6fc',
  soft: '#9198a1',
  rule: '#3d444d',
  good: '#3fb950',
  bad: '#f85149',
  series: ['#58a6ff', '#f0883e', '#bc8cff', '#56d364', '#ff7bcb', '#a9b6c3'],
};

export const seriesCount = light.series.length;

function rules({ ground, ink, soft, rule, good, bad, series }: typeof light): string {
  const lines = series.map(
    (colour, n) => `.line${n}{stroke:${colour};fill:none;stroke-width:1.5}.name${n}{fill:${colour}}`,
  );
  return (
    `.ground{fill:${ground}}text{fill:${ink}}.soft{fill:${soft}}.rule{stroke:${rule}}.goal{stroke:${ink}}` +
    `.good{fill:${good}}.bad{fill:${bad}}.whisker{stroke:${ink};stroke-width:1.5}${lines.join('')}`
  );
}

/** A complete SVG document of the given size, with a background. */
export function drawSvg(width: number, height: number, title: string, parts: readonly string[]): string {
  const style = `text{font:13px system-ui,sans-serif}.small{font-size:11px}.title{font-size:16px;font-weight:600}`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" aria-label="${escapeText(title)}">`,
    `<style>${style}${rules(light)}@media(prefers-color-scheme:dark){${rules(dark)}}</style>`,
    `<rect class="ground" width="${width}" height="${height}"/>`,
    ...parts,
    '</svg>\n',
  ].join('\n');
}

export interface TextStyle {
  className?: string;
  anchor?: 'start' | 'middle' | 'end';
}

export function drawText(x: number, y: number, text: string, style: TextStyle = {}): string {
  const { className = '', anchor = 'start' } = style;
  return `<text x="${short(x)}" y="${short(y)}" class="${className}" text-anchor="${anchor}">${escapeText(text)}</text>`;
}

export function drawLine(x1: number, y1: number, x2: number, y2: number, className: string): string {
  return `<line x1="${short(x1)}" y1="${short(y1)}" x2="${short(x2)}" y2="${short(y2)}" class="${className}"/>`;
}

export function short(number: number): string {
  return String(Number(number.toFixed(1)));
}
