/** V8's CPU profiles: merges several into one, and turns one into a tree of times. Pure. */

export interface CpuProfile {
  nodes: ProfileNode[];
  startTime: number;
  endTime: number;
  /** The node id of each sample, and the microseconds since the sample before. */
  samples?: number[];
  timeDeltas?: number[];
}

interface ProfileNode {
  id: number;
  callFrame: CallFrame;
  hitCount?: number;
  children?: number[];
}

interface CallFrame {
  functionName: string;
  scriptId: string;
  url: string;
  lineNumber: number;
  columnNumber: number;
}

/** A function in its call path, with the microseconds in it and in its callees. */
export interface Frame {
  callFrame: CallFrame;
  totalUs: number;
  selfUs: number;
  children: Frame[];
}

/** Joins profiles one after the other, without the gaps between them. */
export function mergeProfiles(profiles: readonly CpuProfile[]): CpuProfile {
  const merged: ProfileNode[] = [];
  const known = new Map<string, ProfileNode>();
  const samples: number[] = [];
  const timeDeltas: number[] = [];

  /** The node in the merged profile for a function called from `parent`. */
  function place(parent: ProfileNode | null, { callFrame, hitCount = 0 }: ProfileNode): ProfileNode {
    const { functionName, url, lineNumber, columnNumber } = callFrame;
    const key = [parent?.id ?? 0, functionName, url, lineNumber, columnNumber].join('\n');
    const found = known.get(key) ?? { id: merged.length + 1, callFrame, hitCount: 0, children: [] };
    if (!known.has(key)) {
      known.set(key, found);
      merged.push(found);
      parent?.children?.push(found.id);
    }
    found.hitCount = (found.hitCount ?? 0) + hitCount;
    return found;
  }

  for (const profile of profiles) {
    const byId = new Map(profile.nodes.map((node) => [node.id, node]));
    const placed = new Map<number, number>();
    const walk = (node: ProfileNode, parent: ProfileNode | null) => {
      const own = place(parent, node);
      placed.set(node.id, own.id);
      for (const id of node.children ?? []) walk(nodeOf(byId, id), own);
    };
    const [root] = profile.nodes;
    if (root) walk(root, null);
    for (const id of profile.samples ?? []) samples.push(placed.get(id) ?? 1);
    for (const delta of profile.timeDeltas ?? []) timeDeltas.push(delta);
  }
  const endTime = timeDeltas.reduce((sum, delta) => sum + delta, 0);
  return { nodes: merged, startTime: 0, endTime, samples, timeDeltas };
}

/** Without idle time. */
export function buildFrames({ nodes, samples = [], timeDeltas = [] }: CpuProfile): Frame {
  const spent = new Map<number, number>();
  for (const [index, id] of samples.entries())
    spent.set(id, (spent.get(id) ?? 0) + Math.max(0, timeDeltas[index] ?? 0));
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const build = ({ id, callFrame, children = [] }: ProfileNode): Frame => {
    const below = children
      .map((child) => build(nodeOf(byId, child)))
      .filter((frame) => !isBesidesWork(frame.callFrame) && frame.totalUs > 0);
    const selfUs = spent.get(id) ?? 0;
    const totalUs = below.reduce((sum, child) => sum + child.totalUs, selfUs);
    return { callFrame, totalUs, selfUs, children: below.sort((a, b) => b.totalUs - a.totalUs) };
  };
  const [root] = nodes;
  if (!root) throw new Error('The profile is empty');
  return build(root);
}

/** Idle, or the start and end of the profiler itself. */
function isBesidesWork({ functionName, url }: CallFrame): boolean {
  return functionName === '(idle)' || url.endsWith('/profiler.control.ts');
}

function nodeOf(byId: ReadonlyMap<number, ProfileNode>, id: number): ProfileNode {
  const node = byId.get(id);
  if (!node) throw new Error(`The profile refers to a missing node ${id}`);
  return node;
}
