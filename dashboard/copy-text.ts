/** Copies a text to the clipboard. False: the browser does not allow it. */
export async function copyText(text: string): Promise<boolean> {
  try {
    // Browsers have `clipboard` only on https and on localhost.
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
    return copySelection(text);
  } catch {
    return false;
  }
}

/** Works on plain http too. `execCommand` copies what is selected, so the text is in the page for a moment. */
function copySelection(text: string): boolean {
  const focused = document.activeElement;
  const area = Object.assign(document.createElement('textarea'), { value: text, readOnly: true });
  area.style.position = 'fixed';
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand('copy');
  area.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
