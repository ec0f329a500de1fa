/** `--profile`: what the services of a scenario did while they were measured, and at no other time, as one profile. */
import type { Child } from './processes.ts';
import { type CpuProfile, mergeProfiles } from './report/cpu-profile.ts';
import { drawFlames } from './report/flame.ts';
import { saveResult } from './report/results.ts';
import type { Bench } from './scenario.ts';

export interface Profiling {
  /** What the service's Node is to be started with. */
  flags: readonly string[];
  /** From now until the scenario, or its part, ends. */
  watch(bench: Bench, child: Child): void;
  /** Profiles all services that are watched while it works. */
  during<T>(work: () => Promise<T>): Promise<T>;
  /** Writes the profile and its flame graph; returns where they are. */
  save(scenario: string): string[];
}

export function makeProfiling(): Profiling {
  const watched = new Set<Child>();
  const profiles: CpuProfile[] = [];
  const ask = (question: string) => Promise.all([...watched].map((child) => child.ask(question)));
  return {
    flags: ['--import', new URL('./profiler.control.ts', import.meta.url).href],
    watch(bench, child) {
      watched.add(child);
      bench.defer(() => void watched.delete(child));
    },
    async during(work) {
      await ask('start profile');
      const done = await work();
      for (const answer of await ask('stop profile'))
        profiles.push((answer as { profile: CpuProfile }).profile);
      return done;
    },
    save(scenario) {
      const profile = mergeProfiles(profiles);
      return [
        saveResult(`${scenario}.cpuprofile`, JSON.stringify(profile)),
        saveResult(`${scenario}.flame.html`, drawFlames(profile, scenario)),
      ];
    },
  };
}
