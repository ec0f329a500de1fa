/** `--profile`: one CPU profile of all services of a scenario, for the measured time only. */
import { type CpuProfile, mergeProfiles } from './report/cpu-profile.ts';
import { drawFlames } from './report/flame.ts';
import { saveResult } from './report/results.ts';
import type { Profiling } from './scenario.ts';

export function makeProfiling(): Profiling {
  const watched = new Set<Parameters<Profiling['watch']>[1]>();
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
