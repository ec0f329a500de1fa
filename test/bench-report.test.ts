/** What the bench makes of its figures: outcomes, drawings, profiles, and what a load would need. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { firstLimit, needOf } from '../bench/model.ts';
import { drawChart } from '../bench/report/chart.ts';
import { buildFrames, type CpuProfile, mergeProfiles } from '../bench/report/cpu-profile.ts';
import { drawFlames } from '../bench/report/flame.ts';
import { checkFigures, compareRounds, jsonLine, listMeasures, tableRows } from '../bench/report/outcome.ts';
import { drawPanels } from '../bench/report/panels.ts';
import { compareThirds } from '../bench/studies/soak-growth.ts';

const round = (ratio: number) => ({ service: 100 * ratio, control: 100, ratio });

test('the round with the median ratio counts, and one short of the goal is missed', () => {
  const outcome = compareRounds({ name: 'deliver', goal: 0.6 }, [round(0.9), round(0.5), round(0.55)], 12);
  assert.equal(
    jsonLine(outcome),
    '{"scenario":"deliver","value":55,"control":100,"ratio":0.55,"goal":0.6,"met":false}',
  );
  assert.deepEqual(tableRows(outcome), [
    ['deliver', '55 (50–90)', '100 (100–100)', '0.55 (0.5–0.9)', '≥ 0.60', '✗ missed', '12'],
  ]);
});

test('fewer than three rounds are no measurement', () => {
  assert.throws(() => compareRounds({ name: 'deliver', goal: 0.6 }, [round(1)], 1), /there are 1/);
  assert.throws(
    () => checkFigures({ name: 'latency', goal: { p50Ms: 10 } }, { p50Ms: [1, 2] }, 1),
    /there are 2/,
  );
});

test('each figure is held against its own bound', () => {
  const goal = { p50Ms: 10, p99Ms: 50 };
  const outcome = checkFigures({ name: 'latency', goal }, { p50Ms: [3, 2, 30], p99Ms: [60, 51, 40] }, 5);
  assert.deepEqual(outcome.value, { p50Ms: 3, p99Ms: 51 });
  assert.deepEqual(
    listMeasures(outcome).map(({ label, met }) => [label, met]),
    [
      ['latency p50Ms', true],
      ['latency p99Ms', false],
    ],
  );
});

test('a bar is as long as its share of the goal, and what does not fit is marked as cut', () => {
  const bar = (value: number) => {
    const measure = {
      label: '<deliver>',
      better: 'more',
      value,
      least: 0,
      most: 9,
      goal: 1,
      met: value >= 1,
    };
    return drawChart([{ ...measure, better: 'more' }], 'a machine');
  };
  const width = (svg: string) => Number(/class="(?:good|bad)" [^>]*width="([\d.]+)"/.exec(svg)?.[1]);
  assert.equal(width(bar(0.5)) * 2, width(bar(1)));
  assert.match(bar(0.5), /class="bad"/);
  assert.match(bar(1), /class="good"/);
  assert.match(bar(1), /&#60;deliver&#62;/);
  assert.match(bar(1), /›/);
});

const callFrame = (functionName: string, url = '') => ({
  functionName,
  url,
  scriptId: '0',
  lineNumber: 0,
  columnNumber: 0,
});

/** root → work → inner, and root → (idle). */
function profile(samples: number[], timeDeltas: number[]): CpuProfile {
  const nodes = [
    { id: 1, callFrame: callFrame('(root)'), children: [2, 4] },
    { id: 2, callFrame: callFrame('work</script>', 'node:fs'), children: [3] },
    { id: 3, callFrame: callFrame('inner') },
    { id: 4, callFrame: callFrame('(idle)') },
  ];
  return { nodes, startTime: 5, endTime: 10, samples, timeDeltas };
}

test('profiles become one, and time without work does not count', () => {
  const merged = mergeProfiles([profile([2, 3], [10, 20]), profile([3, 4], [5, 1000])]);
  assert.equal(merged.nodes.length, 4);
  assert.equal(merged.endTime, 1035);
  const whole = buildFrames(merged);
  assert.equal(whole.totalUs, 35);
  const [work] = whole.children;
  assert.deepEqual([work?.totalUs, work?.selfUs, work?.children[0]?.selfUs], [35, 10, 25]);
});

test('a flame graph has every function and cannot be broken out of', () => {
  const html = drawFlames(profile([2, 3], [10, 20]), 'deliver');
  const [, data = ''] = /const boxes = (.*);/.exec(html) ?? [];
  assert.deepEqual(JSON.parse(data), [
    [0, 0, 30, 0, '(root)', 'engine'],
    [1, 0, 30, 10, 'work</script> node:fs:1', 'node'],
    [2, 0, 20, 20, 'inner', 'engine'],
  ]);
  assert.equal(html.split('</script>').length, 2);
});

test('what a load needs follows from what one delivery and one message cost', () => {
  const one = { serviceCpuMs: 0.6, postgresCpuMs: 0.3, walBytes: 1000, rows: 3, diskBytes: 500 };
  const costs = { message: { ...one, diskBytes: 10_000 }, delivery: one, identityBytes: 2000 };
  const load = { deliveriesPerSecond: 1000, deliveriesPerMessage: 2, identities: 1e6, retentionDays: 10 };
  const need = needOf(costs, load);
  // 1,500 things of 0.6 ms each second are 0.9 cores, at 60 %.
  assert.deepEqual([round3(need.serviceCores), need.serviceProcesses], [1.5, 2]);
  assert.equal(round3(need.postgresCores), 0.75);
  assert.equal(round3(need.walMbPerSecond), 1.5);
  assert.equal(need.rowsPerSecond, 4500);
  assert.equal(round3(need.diskGbPerDay), 475.2);
  assert.equal(round3(need.diskTb), 4.754);
  assert.equal(need.connections, 34);
  const server = { postgresCores: 7.5, walMbPerSecond: 15, diskTb: 4.754 / 2, connections: 320 };
  const { limit, share } = firstLimit(need, server);
  assert.deepEqual([limit, round3(share)], ['diskTb', 2]);
});

function round3(number: number): number {
  return Number(number.toFixed(3));
}

const sample = (minute: number, cpuMs: number, memoryMb: number) => ({
  ...{ minute, seconds: 5, received: 100, serviceCpuMs: cpuMs, postgresCpuMs: cpuMs, memoryMb },
});

test('a soak fails when deliveries grow dearer, or memory grows', () => {
  const flat = [1, 2, 3, 4, 5, 6].map((minute) => sample(minute, 20, 100));
  assert.equal(compareThirds(flat).met, true);
  const { value, met } = compareThirds([...flat.slice(0, 4), sample(5, 30, 100), sample(6, 30, 100)]);
  assert.deepEqual([value.growth.cost, value.growth.memory, met], [1.5, 1, false]);
  assert.equal(compareThirds([...flat.slice(0, 4), sample(5, 20, 130), sample(6, 20, 130)]).met, false);
  assert.throws(() => compareThirds(flat.slice(0, 2)), /at least 3 samples/);
});

test('a line goes from the first minute to the last, and reaches its highest value', () => {
  const svg = drawPanels('A <soak>', [
    {
      title: 'MB',
      series: [
        {
          name: 'a',
          points: [
            [0, 0],
            [5, 100],
            [10, 50],
          ],
        },
      ],
    },
  ]);
  // From the foot of the panel to its top and half way back.
  assert.match(svg, /points="56,170 253,34 450,102"/);
  assert.match(svg, /10 min/);
  assert.match(svg, /A &#60;soak&#62;/);
});
