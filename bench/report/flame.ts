/**
 * A profile as a flame graph in one HTML page: callers above callees, and the width is the time. A click zooms into a function,
 * and the search marks functions and shows their share of the time. Pure.
 */
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { buildFrames, type CpuProfile, type Frame } from './cpu-profile.ts';
import { escapeText } from './svg.ts';

/** Functions below this share of the total time are left out. */
const leastShare = 0.0003;
const root = `${pathToFileURL(path.resolve(import.meta.dirname, '../..')).href}/`;

/** Depth; start, width and own time in microseconds; name; owner. */
type Box = [number, number, number, number, string, Owner];
type Owner = 'ours' | 'package' | 'node' | 'engine';

export function drawFlames(profile: CpuProfile, title: string): string {
  const whole = buildFrames(profile);
  const boxes: Box[] = [];
  const lay = (frame: Frame, depth: number, start: number) => {
    if (frame.totalUs < whole.totalUs * leastShare) return;
    const { name, owner } = describe(frame);
    boxes.push([depth, start, frame.totalUs, frame.selfUs, name, owner]);
    let at = start;
    for (const child of frame.children) {
      lay(child, depth + 1, at);
      at += child.totalUs;
    }
  };
  lay(whole, 0, 0);
  // The only character that could end the script element.
  const data = JSON.stringify(boxes).replaceAll('<', '\\u003c');
  return page(escapeText(title), (whole.totalUs / 1e6).toFixed(1), data);
}

/** Paths are relative to the repository, so that a page shows nothing of the machine. */
function describe({ callFrame: { functionName, url, lineNumber } }: Frame): { name: string; owner: Owner } {
  const called = functionName || '(anonymous)';
  if (url === '') return { name: called, owner: 'engine' };
  if (url.startsWith('node:')) return { name: `${called} ${url}:${lineNumber + 1}`, owner: 'node' };
  const file = url.startsWith(root) ? url.slice(root.length) : (url.split('/').at(-1) ?? url);
  const owner = file.includes('node_modules/') ? 'package' : 'ours';
  return { name: `${called} ${file.replace('node_modules/', '')}:${lineNumber + 1}`, owner };
}

function page(title: string, seconds: string, data: string): string {
  return `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>${title}: where the time went</title>
<style>
  :root { color-scheme: light dark; font: 13px system-ui, sans-serif }
  body { margin: 12px }
  header { display: flex; flex-wrap: wrap; gap: 6px 16px; align-items: baseline; margin-bottom: 10px }
  h1 { font-size: 16px; margin: 0 }
  #view { position: relative; overflow: hidden }
  #view div { position: absolute; box-sizing: border-box; height: 17px; overflow: hidden; white-space: nowrap; cursor: pointer;
    padding: 0 3px; font-size: 11px; line-height: 17px; border-right: 1px solid Canvas; color: #111 }
  .ours { background: #ffb869 } .package { background: #9cd08f } .node { background: #9cc3f5 } .engine { background: #c9c9c9 }
  .away { opacity: .25 } .found { outline: 2px solid #d1006c; outline-offset: -2px }
  header span b { display: inline-block; width: 11px; height: 11px }
</style>
<header>
  <h1>${title}</h1><span>${seconds} s at work</span>
  <input id="search" type="search" placeholder="search functions and files" aria-label="search"><output id="share"></output>
  <span><b class="ours"></b> Posthorn</span><span><b class="package"></b> packages</span>
  <span><b class="node"></b> Node</span><span><b class="engine"></b> V8, garbage, native</span>
  <span>click: widen; click the top: back</span>
</header>
<div id="view"></div>
<script>
const boxes = ${data};
const view = document.getElementById('view'), search = document.getElementById('search'), share = document.getElementById('share');
const all = boxes[0][2], height = 18;
let from = 0, width = all;
const percent = (part) => (100 * part / all).toFixed(2) + ' %';
function draw() {
  const wanted = search.value.toLowerCase(), wide = view.clientWidth;
  view.replaceChildren();
  let deepest = 0;
  for (const [depth, start, time, own, name, owner] of boxes) {
    const left = Math.max(start, from), right = Math.min(start + time, from + width);
    const pixels = (right - left) / width * wide;
    if (pixels < 0.6) continue;
    deepest = Math.max(deepest, depth);
    const box = document.createElement('div');
    box.className = owner + (time > width ? ' away' : '') + (wanted && name.toLowerCase().includes(wanted) ? ' found' : '');
    box.style.cssText = 'top:' + depth * height + 'px;left:' + (left - from) / width * wide + 'px;width:' + pixels + 'px';
    if (pixels < 8) box.style.padding = '0';
    box.textContent = pixels > 24 ? name : '';
    box.title = name + '\\n' + percent(time) + ', ' + (time / 1000).toFixed(1) + ' ms; itself ' + percent(own);
    box.onclick = () => { from = start; width = time; draw(); };
    view.append(box);
  }
  view.style.height = (deepest + 1) * height + 'px';
  share.textContent = wanted ? percent(found(wanted)) : '';
}
// The callees of a match are part of its time and are not counted again.
function found(wanted) {
  let sum = 0, end = -1;
  for (const [, start, time, , name] of boxes) {
    if (start < end || !name.toLowerCase().includes(wanted)) continue;
    sum += time;
    end = start + time;
  }
  return sum;
}
search.oninput = draw;
addEventListener('resize', draw);
draw();
</script>
</html>
`;
}
