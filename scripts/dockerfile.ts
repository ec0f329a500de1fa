/** Reads a simple Dockerfile such as ours: stages of instructions, with lists in JSON. */
export interface Stage {
  name: string;
  base: string;
  steps: { verb: string; rest: string }[];
}

export function readDockerfile(text: string): Stage[] {
  const stages: Stage[] = [];
  const lines = text
    .replaceAll(/^#.*\n/gm, '')
    .replaceAll(/\\\n\s*/g, '')
    .split('\n');
  for (const line of lines.filter(Boolean)) {
    const [, verb = '', rest = ''] = /^([A-Z]+) (.*)$/.exec(line) ?? [];
    if (!verb) throw new Error(`scripts/dockerfile.ts cannot read this line of the Dockerfile: ${line}`);
    if (verb === 'FROM') {
      const [base = '', , name = 'final'] = rest.split(' ');
      stages.push({ name, base, steps: [] });
    } else stages.at(-1)?.steps.push({ verb, rest });
  }
  return stages;
}

/** The list of an instruction that occurs once, such as ENTRYPOINT ["node", "x.js"], without its options. */
export function readList(stage: Stage, verb: string): string[] {
  return JSON.parse(/\[.*\]$/.exec(readText(stage, verb))?.[0] ?? 'null');
}

export function readText(stage: Stage, verb: string): string {
  const found = stage.steps.filter((step) => step.verb === verb);
  if (found.length !== 1)
    throw new Error(`The stage ${stage.name} must have one ${verb}; it has ${found.length}`);
  return found[0]?.rest ?? '';
}

export function readEnvironment(stage: Stage): Record<string, string> {
  const pairs = stage.steps.filter(({ verb }) => verb === 'ENV').map(({ rest }) => rest.split('=', 2));
  return Object.fromEntries(pairs);
}
