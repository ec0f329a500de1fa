/** The start of a command that a person can paste, for the hints in errors and logs. */

/** A checkout runs TypeScript and has no `posthorn` in the PATH; the published package contains JavaScript. */
export function chooseCommand(file: string): string {
  return file.endsWith('.ts') ? 'npm run -s posthorn --' : 'posthorn';
}

export const posthorn = chooseCommand(import.meta.filename);
