/**
 * `chart.svg`: a bar for each goal, as a share of the goal, with whiskers from the lowest to the highest round. A ratio meets its
 * goal when the bar reaches the line, a figure when the bar does not cross the line. Pure.
 */
import type { Measure } from './outcome.ts';
import { drawLine, drawSvg, drawText, short } from './svg.ts';

const width = 860;
const plot = { left: 190, right: 620 };
const rowHeight = 30;
const barHeight = 14;
/** Bars beyond this share of the goal are cut and get an arrow. */
const mostShown = 2.5;

export function drawChart(measures: readonly Measure[], caption: string): string {
  const parts = [
    drawText(20, 32, 'Posthorn against its goals', { className: 'title' }),
    drawText(20, 52, caption, { className: 'soft small' }),
  ];
  let y = 84;
  const groups = [
    ['more', 'Rate as a ratio to the control: beyond the line is good'],
    ['less', 'Figures with a bound: short of the line is good'],
  ] as const;
  for (const [better, heading] of groups) {
    const rows = measures.filter((measure) => measure.better === better);
    if (rows.length === 0) continue;
    parts.push(drawText(20, y, heading, { className: 'soft' }));
    const top = y + 12;
    const goalX = place(1);
    parts.push(...rows.flatMap((measure, index) => drawRow(measure, top + index * rowHeight)));
    y = top + rows.length * rowHeight;
    parts.push(drawLine(goalX, top, goalX, y, 'goal'), drawLine(plot.left, top, plot.left, y, 'rule'));
    parts.push(drawText(goalX, y + 14, 'goal', { className: 'soft small', anchor: 'middle' }));
    y += 46;
  }
  return drawSvg(width, y, 'Posthorn against its goals', parts);
}

function drawRow({ label, value, least, most, goal, met, better }: Measure, y: number): string[] {
  const middle = y + rowHeight / 2;
  const end = place(value / goal);
  const [from, to] = [place(least / goal), place(most / goal)];
  const sign = better === 'more' ? '≥' : '≤';
  const text = `${show(value)} (${show(least)}–${show(most)}), goal ${sign} ${show(goal)}`;
  const cut = most / goal > mostShown ? [drawText(plot.right + 2, middle + 4, '›')] : [];
  return [
    drawText(plot.left - 8, middle + 4, label, { anchor: 'end' }),
    `<rect class="${met ? 'good' : 'bad'}" x="${plot.left}" y="${middle - barHeight / 2}" ` +
      `width="${short(end - plot.left)}" height="${barHeight}" opacity="0.75"/>`,
    drawLine(from, middle, to, middle, 'whisker'),
    drawLine(from, middle - 5, from, middle + 5, 'whisker'),
    drawLine(to, middle - 5, to, middle + 5, 'whisker'),
    drawText(plot.right + 14, middle + 4, `${met ? '✓' : '✗'} ${text}`, { className: 'small' }),
    ...cut,
  ];
}

/** The x position of a share of the goal. Negative shares are drawn as 0. */
function place(share: number): number {
  const shown = Math.min(Math.max(share, 0), mostShown) / mostShown;
  return plot.left + shown * (plot.right - plot.left);
}

function show(number: number): string {
  return String(Number(number.toPrecision(3)));
}
