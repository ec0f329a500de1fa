/** The outcome of a scenario, by the median of its rounds, as a line of JSON and as rows of a table. Pure. */
import {
  type BoundedScenario,
  type ComparedScenario,
  type Figures,
  median,
  type Round,
  type Scenario,
  type Taken,
} from '../scenario.ts';

export type Outcome = Compared | Bounded;

interface ScenarioOutcome {
  scenario: string;
  met: boolean;
  /** The duration of the scenario, with its preparation. */
  seconds: number;
}

interface Compared extends ScenarioOutcome {
  value: number;
  control: number;
  ratio: number;
  goal: number;
  rounds: readonly Round[];
}

interface Bounded extends ScenarioOutcome {
  value: Figures;
  control: null;
  ratio: null;
  goal: Figures;
  rounds: Taken;
}

export function isCompared(scenario: Scenario): scenario is ComparedScenario {
  return typeof scenario.goal === 'number';
}

/** The round with the median ratio. There must be an odd number of rounds, at least three. */
export function compareRounds(
  { name, goal }: Pick<ComparedScenario, 'name' | 'goal'>,
  rounds: readonly Round[],
  seconds: number,
): Compared {
  const middle = rounds.toSorted((a, b) => a.ratio - b.ratio)[(rounds.length - 1) / 2];
  if (!middle || rounds.length < 3)
    throw new Error(`A median needs at least 3 rounds; there are ${rounds.length}`);
  const value = round(middle.service, 1);
  const control = round(middle.control, 1);
  const ratio = round(middle.ratio, 3);
  return { scenario: name, value, control, ratio, goal, met: ratio >= goal, seconds, rounds };
}

/** The median of the rounds, for each figure. */
export function checkFigures(
  { name, goal }: Pick<BoundedScenario, 'name' | 'goal'>,
  taken: Taken,
  seconds: number,
): Bounded {
  const value: Figures = {};
  for (const figure of Object.keys(goal)) {
    const rounds = taken[figure] ?? [];
    if (rounds.length < 3) throw new Error(`${figure} needs at least 3 rounds; there are ${rounds.length}`);
    value[figure] = round(median(rounds), 3);
  }
  const met = Object.entries(goal).every(([figure, most]) => (value[figure] ?? Number.NaN) <= most);
  return { scenario: name, value, control: null, ratio: null, goal, met, seconds, rounds: taken };
}

export function jsonLine({ scenario, value, control, ratio, goal, met }: Outcome): string {
  return JSON.stringify({ scenario, value, control, ratio, goal, met });
}

/** One goal: a ratio must be at least the goal, a figure at most the goal. */
export interface Measure {
  label: string;
  better: 'more' | 'less';
  value: number;
  least: number;
  most: number;
  goal: number;
  met: boolean;
}

export function listMeasures(outcome: Outcome): Measure[] {
  const { scenario, met } = outcome;
  if (outcome.control !== null) {
    const { ratio: value, goal, rounds } = outcome;
    const spread = spreadOf(rounds.map(({ ratio }) => ratio));
    return [{ label: scenario, better: 'more', value, ...spread, goal, met }];
  }
  return Object.entries(outcome.goal).map(([figure, goal]) => {
    const value = outcome.value[figure] ?? Number.NaN;
    const spread = spreadOf(outcome.rounds[figure] ?? []);
    return { label: `${scenario} ${figure}`, better: 'less', value, ...spread, goal, met: value <= goal };
  });
}

export const tableHead = ['scenario', 'service/s', 'control/s', 'ratio', 'goal', '', 'seconds'];

export function tableRows(outcome: Outcome): string[][] {
  return listMeasures(outcome).map((measure, index) => {
    const seconds = index === 0 ? outcome.seconds.toFixed(0) : '';
    const decision = [measure.met ? '✓' : '✗ missed', seconds];
    if (outcome.control === null)
      return [measure.label, withSpread(measure, 3), '', '', `≤ ${measure.goal}`, ...decision];
    const rate = (side: 'service' | 'control', value: number) =>
      withSpread({ value, ...spreadOf(outcome.rounds.map((round) => round[side])) }, 0);
    const rates = [rate('service', outcome.value), rate('control', outcome.control)];
    return [measure.label, ...rates, withSpread(measure, 2), `≥ ${measure.goal.toFixed(2)}`, ...decision];
  });
}

function withSpread({ value, least, most }: Pick<Measure, 'value' | 'least' | 'most'>, digits: number) {
  const show = (number: number) => String(round(number, digits));
  return `${show(value)} (${show(least)}–${show(most)})`;
}

export function spreadOf(numbers: readonly number[]): { least: number; most: number } {
  return { least: Math.min(...numbers), most: Math.max(...numbers) };
}

export function round(number: number, digits: number): number {
  return Number(number.toFixed(digits));
}
