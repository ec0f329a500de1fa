/** Several small charts over time in one drawing, in two columns. Pure. */
import { drawLine, drawSvg, drawText, seriesCount, short } from './svg.ts';

export interface Panel {
  title: string;
  series: readonly { name: string; points: readonly (readonly [minute: number, value: number])[] }[];
}

const panel = { width: 470, height: 230 };
const plot = { left: 56, right: 450, top: 34, bottom: 170 };

export function drawPanels(title: string, panels: readonly Panel[]): string {
  const top = 50;
  const parts = panels.map((one, index) => {
    const [x, y] = [(index % 2) * panel.width, top + Math.floor(index / 2) * panel.height];
    return `<g transform="translate(${x} ${y})">${drawPanel(one)}</g>`;
  });
  const height = top + Math.ceil(panels.length / 2) * panel.height;
  return drawSvg(2 * panel.width, height, title, [drawText(20, 30, title, { className: 'title' }), ...parts]);
}

function drawPanel({ title, series }: Panel): string {
  const points = series.flatMap((one) => one.points);
  const lastMinute = Math.max(...points.map(([minute]) => minute), 0.001);
  const most = roundUp(Math.max(...points.map(([, value]) => value), 0));
  const x = (minute: number) => plot.left + (minute / lastMinute) * (plot.right - plot.left);
  const y = (value: number) => plot.bottom - (value / most) * (plot.bottom - plot.top);
  const marks = [0, 0.5, 1].map((share) => share * most);
  return [
    drawText(plot.left, 20, title),
    ...marks.flatMap((mark) => [
      drawLine(plot.left, y(mark), plot.right, y(mark), 'rule'),
      drawText(plot.left - 6, y(mark) + 4, String(Number(mark.toPrecision(3))), {
        className: 'soft small',
        anchor: 'end',
      }),
    ]),
    drawText(plot.left, plot.bottom + 16, '0', { className: 'soft small' }),
    drawText(plot.right, plot.bottom + 16, `${short(lastMinute)} min`, {
      className: 'soft small',
      anchor: 'end',
    }),
    ...series.map(({ points }, n) => {
      const path = points.map(([minute, value]) => `${short(x(minute))},${short(y(value))}`).join(' ');
      return `<polyline class="line${n % seriesCount}" points="${path}"/>`;
    }),
    ...series.map(({ name }, n) =>
      drawText(plot.left + n * 80, plot.bottom + 36, name, { className: `small name${n % seriesCount}` }),
    ),
  ].join('\n');
}

/** Rounds up to 1, 2 or 5 times a power of ten. */
function roundUp(number: number): number {
  if (number <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(number));
  return unit * ([1, 2, 5, 10].find((step) => step * unit >= number) ?? 10);
}
