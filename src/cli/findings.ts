/** What the checks of `posthorn doctor` found, and how it is printed. */

export interface Finding {
  check: string;
  /** `warn`: works, but could be better. `unknown`: could not be checked. */
  level: 'ok' | 'warn' | 'fail' | 'unknown';
  detail: string;
  /** What to do next. */
  remedy?: string;
}

export type CheckResult = Omit<Finding, 'check'>;

export const ok = (detail: string): CheckResult => ({ level: 'ok', detail });
export const warn = (detail: string, remedy: string): CheckResult => ({ level: 'warn', detail, remedy });
export const fail = (detail: string, remedy: string): CheckResult => ({ level: 'fail', detail, remedy });
export const unknown = (detail: string, remedy: string): CheckResult => ({
  level: 'unknown',
  detail,
  remedy,
});

export async function runCheck(check: string, result: Promise<CheckResult>): Promise<Finding> {
  return {
    check,
    ...(await result.catch((error) => ({ level: 'fail' as const, detail: messageOf(error) }))),
  };
}

const marks = { ok: '✓', warn: '!', fail: '✗', unknown: '?' };

export function describeFindings(findings: Finding[]): string {
  return findings
    .map(({ check, level, detail, remedy }) => {
      const line = `${marks[level]} ${check.padEnd(13)} ${detail}`;
      return remedy ? `${line}\n  → ${remedy}` : line;
    })
    .join('\n');
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
