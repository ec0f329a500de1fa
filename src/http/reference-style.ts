/** The look of `/docs`: the colours and the horn of the dashboard, light and dark, as the variables that Scalar's style sheet reads. */
export const referenceStyle = `
.light-mode {
  --page: #fdfcf9; --side: #f6f3ec; --raised: #fff; --line: #e5dfd2; --ink: #211d16; --soft: #655d4f; --brass: #8a5a00;
  --glow: #fbf0d5; --code: #f4f0e6; --good: #1a7037; --bad: #b3261e; --in: #0b5fae; --put: #7240b0;
}
.dark-mode {
  --page: #16150f; --side: #1c1a14; --raised: #201e17; --line: #38342a; --ink: #ece7db; --soft: #a89f8d; --brass: #e5b454;
  --glow: #3a2f14; --code: #26231b; --good: #7ed094; --bad: #f5938b; --in: #7cb8f5; --put: #c4a1f5;
}
.light-mode, .dark-mode {
  --scalar-font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif;
  --scalar-font-code: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
  --scalar-background-1: var(--page); --scalar-background-2: var(--side); --scalar-background-3: var(--code);
  --scalar-background-accent: var(--glow); --scalar-border-color: var(--line);
  --scalar-color-1: var(--ink); --scalar-color-2: var(--soft); --scalar-color-3: var(--soft);
  --scalar-color-accent: var(--brass); --scalar-link-color: var(--brass); --scalar-link-color-hover: var(--brass);
  --scalar-button-1: var(--brass); --scalar-button-1-color: var(--page); --scalar-button-1-hover: var(--brass);
  --scalar-color-green: var(--good); --scalar-color-red: var(--bad); --scalar-color-yellow: var(--brass);
  --scalar-color-orange: var(--brass); --scalar-color-blue: var(--in); --scalar-color-purple: var(--put);
  --scalar-sidebar-background-1: var(--side); --scalar-sidebar-color-1: var(--ink); --scalar-sidebar-color-2: var(--soft);
  --scalar-sidebar-border-color: var(--line); --scalar-sidebar-color-active: var(--ink);
  --scalar-sidebar-item-hover-background: var(--glow); --scalar-sidebar-item-active-background: var(--glow);
  --scalar-sidebar-search-background: var(--page); --scalar-sidebar-search-border-color: var(--line);
  --scalar-sidebar-search-color: var(--soft); --scalar-custom-header-height: 3rem;
}
body { margin: 0; background: var(--page); color: var(--ink); }
.top {
  position: sticky; top: 0; z-index: 100; display: flex; align-items: center; gap: 1.5rem; box-sizing: border-box; height: 3rem;
  padding: 0 1.25rem; background: var(--side); border-bottom: 1px solid var(--line); font: .9375rem/1 var(--scalar-font);
}
.top a { color: var(--ink); text-decoration: none; }
.top a:hover, .top svg { color: var(--brass); }
.top a:focus-visible { outline: 2px solid var(--brass); outline-offset: 2px; border-radius: 4px; }
.top .brand { display: inline-flex; align-items: center; gap: .6rem; margin-right: auto; font-size: 1.125rem; font-weight: 650; }
.bare { max-width: 40rem; margin: 3rem auto; padding: 0 1.25rem; font: 1rem/1.6 var(--scalar-font); }
`;

export const hornDrawing = `<svg viewBox="0 0 32 24" width="28" height="21" aria-hidden="true"
fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round">
<circle cx="13" cy="14" r="7"/><path d="M3 5h12c6 0 9-1 13-4v11c-3-3-5-4-8-4"/></svg>`;
