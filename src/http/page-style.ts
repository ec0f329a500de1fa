/** The colours and the logo of pages that the service writes itself: light and dark, without files to load. */
export const palette = `
:root {
  color-scheme: light dark;
  --page: #fdfcf9; --side: #f6f3ec; --raised: #fff; --line: #e5dfd2; --ink: #211d16; --soft: #655d4f;
  --brass: #8a5a00; --glow: #fbf0d5; --code: #f4f0e6;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #16150f; --side: #1c1a14; --raised: #201e17; --line: #38342a; --ink: #ece7db; --soft: #a89f8d;
    --brass: #e5b454; --glow: #3a2f14; --code: #26231b;
  }
}
`;

export const hornDrawing = `<svg viewBox="0 0 32 24" width="28" height="21" aria-hidden="true"
fill="none" stroke="currentColor" stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round">
<circle cx="13" cy="14" r="7"/><path d="M3 5h12c6 0 9-1 13-4v11c-3-3-5-4-8-4"/></svg>`;
