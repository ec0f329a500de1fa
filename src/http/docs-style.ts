/** The style sheet and logo of `/docs`: light and dark, wide and narrow, without files to load. */
export const palette = `
:root {
  color-scheme: light dark;
  --page: #fdfcf9; --side: #f6f3ec; --raised: #fff; --line: #e5dfd2; --ink: #211d16; --soft: #655d4f;
  --brass: #8a5a00; --glow: #fbf0d5; --code: #f4f0e6;
  --get: #0b5fae; --post: #1a7037; --patch: #8a5a00; --delete: #b3261e; --put: #7240b0;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16150f; --side: #1c1a14; --raised: #201e17; --line: #38342a; --ink: #ece7db; --soft: #a89f8d;
    --brass: #e5b454; --glow: #3a2f14; --code: #26231b;
    --get: #7cb8f5; --post: #7ed094; --patch: #e5b454; --delete: #f5938b; --put: #c4a1f5;
  }
}
`;

export const docsStyle = `${palette}* { box-sizing: border-box; }
html { scroll-padding-top: 1.5rem; -webkit-text-size-adjust: 100%; }
@media (prefers-reduced-motion: no-preference) { html { scroll-behavior: smooth; } }
body {
  margin: 0; display: grid; grid-template-columns: 20rem minmax(0, 1fr);
  background: var(--page); color: var(--ink); font: 16px/1.6 var(--sans);
}
a { color: var(--brass); text-underline-offset: .2em; }
:focus-visible { outline: 2px solid var(--brass); outline-offset: 2px; border-radius: 3px; }
code, pre { font-family: var(--mono); font-size: .875em; }
p code, li code, td > code:not(:only-child) { overflow-wrap: anywhere; }
p > code, li > code { background: var(--code); padding: .1em .35em; border-radius: 4px; }
.skip { position: absolute; left: -999rem; }
.skip:focus { left: 1rem; top: 1rem; padding: .5rem 1rem; background: var(--raised); z-index: 2; }

nav {
  position: sticky; top: 0; height: 100vh; overflow-y: auto; padding: 1.75rem 1.25rem 3rem;
  background: var(--side); border-right: 1px solid var(--line); font-size: .875rem; scrollbar-width: thin;
}
nav a { color: inherit; text-decoration: none; }
nav .brand > a { display: inline-flex; align-items: center; gap: .6rem; font-size: 1.25rem; font-weight: 650; }
nav .brand svg { color: var(--brass); }
nav h2 {
  margin: 1.5rem 0 .3rem; padding-left: .5rem; font-size: .75rem; font-weight: 650; letter-spacing: .06em;
  text-transform: uppercase; color: var(--soft);
}
nav ul { list-style: none; margin: 0; padding: 0; }
nav li a { display: flex; gap: .6rem; padding: .22rem .5rem; border-radius: 6px; }
nav a:hover { color: var(--brass); }
nav li a:hover { background: var(--glow); color: inherit; }
nav code { overflow-wrap: break-word; min-width: 0; line-height: 1.5; }
nav label, nav #menu, .up { display: none; }
.verb {
  flex: 0 0 3.1rem; font: 650 .6875rem/1.9 var(--sans); letter-spacing: .03em; text-transform: uppercase;
}
.get { --hue: var(--get); } .post { --hue: var(--post); } .patch { --hue: var(--patch); }
.delete { --hue: var(--delete); } .put { --hue: var(--put); }
.verb, .method { color: var(--hue, var(--soft)); }

main { width: 100%; max-width: 60rem; margin: 0 auto; padding: 3rem 3rem 8rem; }
h1 { margin: 0; font-size: 2.25rem; line-height: 1.2; letter-spacing: -.02em; }
h1 small { font-size: .875rem; font-weight: 500; letter-spacing: 0; color: var(--soft); vertical-align: middle; }
.tagline { margin: .75rem 0 1.25rem; font-size: 1.25rem; line-height: 1.45; color: var(--soft); text-wrap: balance; }
.base {
  display: flex; flex-wrap: wrap; gap: .4rem .9rem; align-items: baseline; margin-top: 1.5rem; padding: .7rem 1rem;
  border: 1px solid var(--line); border-radius: 8px; background: var(--raised);
}
.base span { font-size: .8125rem; color: var(--soft); }
.base a { margin-left: auto; font-size: .875rem; }
section > h2 { margin: 4.5rem 0 0; font-size: 1.625rem; letter-spacing: -.01em; line-height: 1.25; }
.introduction { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 2.5rem; margin-top: 1rem; }
.introduction h3 { margin: 1.5rem 0 .4rem; font-size: 1.0625rem; }
.introduction p { margin: 0 0 .6rem; }
.introduction ul { margin: 0; padding-left: 1.1rem; }
.introduction article:has(pre) { grid-row: span 3; }
.introduction pre { white-space: pre-wrap; overflow-wrap: anywhere; }

.route { margin-top: 1.5rem; padding: 1.4rem 1.6rem 1.6rem; background: var(--raised); border: 1px solid var(--line); border-radius: 12px; }
.route:target { border-color: var(--brass); box-shadow: 0 0 0 1px var(--brass); }
.route h3 { margin: 0; font-size: 1.125rem; line-height: 1.5; }
.route h3 a { display: flex; align-items: baseline; gap: .75rem; color: inherit; text-decoration: none; }
.route h3 a:hover code { text-decoration: underline; }
.route h3 code { font-weight: 600; font-size: 1rem; overflow-wrap: anywhere; }
.method {
  flex: none; padding: .2rem .55rem; border-radius: 6px; font-size: .75rem; line-height: 1.4; letter-spacing: .04em;
  text-transform: uppercase; background: color-mix(in srgb, var(--hue, var(--soft)) 13%, transparent);
}
.summary { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: baseline; justify-content: space-between; margin: .5rem 0 0; }
.who { padding: .05rem .6rem; border: 1px solid var(--line); border-radius: 99px; font-size: .75rem; color: var(--soft); }
.route h4 {
  margin: 1.4rem 0 .4rem; font-size: .75rem; font-weight: 650; letter-spacing: .06em; text-transform: uppercase;
  color: var(--soft);
}
pre {
  margin: 0; padding: .85rem 1rem; overflow-x: auto; border: 1px solid var(--line); border-radius: 8px;
  background: var(--code); line-height: 1.55; tab-size: 2;
}
pre code { font-size: .8125rem; }

table { width: 100%; border-collapse: collapse; font-size: .9rem; }
.fields { table-layout: fixed; }
.fields th:nth-child(1) { width: 31%; } .fields th:nth-child(2) { width: 25%; }
th { padding: .3rem .75rem .3rem 0; text-align: left; font-size: .75rem; font-weight: 500; color: var(--soft); }
td { padding: .5rem .75rem .5rem 0; border-top: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td:last-child, th:last-child { padding-right: 0; }
.fields td:first-child code { font-weight: 600; }
.fields td:first-child .parent { font-weight: 400; color: var(--soft); }
.fields small { color: var(--soft); white-space: nowrap; }
em { font-style: normal; font-size: .75rem; }
.required { color: var(--delete); } .optional { color: var(--soft); }
.limit { display: inline-block; margin-right: .8rem; color: var(--soft); font-size: .85rem; }
.limit code { color: var(--ink); background: var(--code); padding: .05em .35em; border-radius: 4px; }
.response { margin: 0; padding: .35rem 0; font-size: .9375rem; }
summary { cursor: pointer; }
summary::marker { color: var(--soft); }
.status { font-family: var(--mono); font-size: .875rem; color: var(--post); }
.shape { margin-left: .8rem; font: .8125rem var(--mono); color: var(--soft); }
.problems { margin-top: 1rem; }
.problems td:first-child { width: 34%; } .problems td:nth-child(2) { width: 4rem; font-variant-numeric: tabular-nums; }
.problems a { color: inherit; text-decoration: none; }
.problems tr:target { background: var(--glow); }

@media (max-width: 60rem) {
  body { display: block; }
  nav { position: static; height: auto; padding: .9rem 1.25rem; border: 0; border-bottom: 1px solid var(--line); }
  .brand { display: flex; align-items: center; justify-content: space-between; }
  nav label { display: block; padding: .35rem .9rem; border: 1px solid var(--line); border-radius: 99px; cursor: pointer; }
  nav #menu { display: block; position: absolute; opacity: 0; pointer-events: none; }
  nav:has(#menu:focus-visible) label { outline: 2px solid var(--brass); outline-offset: 2px; }
  nav:has(#menu:checked) label { background: var(--glow); }
  .menu { display: none; padding-bottom: 1rem; }
  #menu:checked ~ .menu { display: block; }
  nav li a { padding: .4rem .5rem; }
  main { padding: 2rem 1.25rem 6rem; }
  .up {
    display: block; position: fixed; right: 1rem; bottom: 1rem; padding: .4rem .9rem; border: 1px solid var(--line);
    border-radius: 99px; background: var(--raised); font-size: .8125rem; text-decoration: none;
  }
}
@media (max-width: 40rem) {
  h1 { font-size: 1.75rem; }
  .tagline { font-size: 1.125rem; }
  .introduction { display: block; }
  .base a { margin-left: 0; }
  section > h2 { margin-top: 3rem; }
  .route { margin-inline: -.5rem; padding: 1rem; }
  table, tbody { display: block; }
  thead { display: none; }
  tr { display: flex; flex-wrap: wrap; gap: .1rem .75rem; padding: .55rem 0; border-top: 1px solid var(--line); }
  td, .problems td:first-child, .problems td:nth-child(2) { width: auto; padding: 0; border: 0; }
  td:last-child { flex-basis: 100%; }
}
@media print {
  nav, .up { display: none; }
  body { display: block; }
  .route { break-inside: avoid-page; }
}
`;

export const hornDrawing = `<svg viewBox="0 0 32 24" width="28" height="21" aria-hidden="true"
fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round">
<circle cx="13" cy="14" r="7"/><path d="M3 5h12c6 0 9-1 13-4v11c-3-3-5-4-8-4"/></svg>`;
