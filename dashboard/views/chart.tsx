/** The traffic of a day: bars for what came in, what went out and what failed, hour by hour. */
import type { Stats } from '../contract.ts';

const width = 720;
const height = 160;
const foot = 20;
/** For the numbers at the left. */
const gutter = 34;

const series = [
  { hue: 'hue-in', name: 'Received', of: (hour: Stats[number]) => hour.received },
  { hue: 'hue-out', name: 'Sent', of: (hour: Stats[number]) => hour.sent },
  { hue: 'hue-bad', name: 'Failed', of: (hour: Stats[number]) => hour.bounced + hour.deliveriesFailed },
] as const;

export function Chart({ stats }: { stats: Stats }) {
  const most = roundUp(Math.max(...stats.flatMap((hour) => series.map(({ of }) => of(hour)))));
  const slot = (width - gutter) / Math.max(1, stats.length);
  const bar = Math.max(2, slot / (series.length + 1));
  const top = height - foot - 8;
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${width} ${height}`} role="img" aria-label={describe(stats)}>
        {[0, 0.5, 1].map((part) => (
          <g key={part}>
            <line x1={gutter} x2={width} y1={height - foot - part * top} y2={height - foot - part * top} />
            {part > 0 && (
              <text x="0" y={height - foot - part * top + 4}>
                {(part * most).toLocaleString()}
              </text>
            )}
          </g>
        ))}
        {stats.map((hour, n) => (
          <g key={hour.at}>
            {series.map(({ hue, of }, k) => {
              const tall = of(hour) === 0 ? 0 : Math.max(2, (of(hour) / most) * top);
              return (
                <rect
                  key={hue}
                  class={hue}
                  x={gutter + n * slot + k * bar + bar / 2}
                  y={height - foot - tall}
                  width={bar - 1}
                  height={tall}
                  rx="1.5"
                />
              );
            })}
            {n % 6 === 0 && (
              <text x={gutter + n * slot} y={height - 5}>
                {new Date(hour.at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' })}
              </text>
            )}
          </g>
        ))}
      </svg>
      <figcaption>
        {series.map(({ hue, name }) => (
          <span key={hue} class={`key ${hue}`}>
            {name}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

/** To 2, 4, 6, 8, 10, 20, 40 …, so that the line in the middle has a whole number. */
function roundUp(n: number): number {
  const size = 10 ** Math.floor(Math.log10(Math.max(1, n)));
  return [2, 4, 6, 8, 10].map((step) => step * size).find((step) => step >= n) ?? n;
}

function describe(stats: Stats): string {
  const total = (of: (hour: Stats[number]) => number) => stats.reduce((sum, hour) => sum + of(hour), 0);
  return `The last day: ${series.map(({ name, of }) => `${name} ${total(of)}`).join(', ')}.`;
}

/** An hour without traffic has no entry in the answer: the chart shows it as empty. */
export function fillHours(stats: Stats, now: Date): Stats {
  const hourMs = 3_600_000;
  const last = Math.floor(now.getTime() / hourMs) * hourMs;
  const byTime = new Map(stats.map((hour) => [Date.parse(hour.at), hour]));
  return Array.from({ length: 24 }, (_, n) => {
    const at = last - (23 - n) * hourMs;
    return byTime.get(at) ?? { ...nothing, at: new Date(at).toISOString() };
  });
}

const nothing = {
  received: 0,
  sent: 0,
  delivered: 0,
  bounced: 0,
  complained: 0,
  deliveriesDelivered: 0,
  deliveriesFailed: 0,
};
