/** Faults of the mail servers in the body of a request that a schema cannot express: whom Posthorn may not call. */
import { isIP } from 'node:net';
import { readHost } from '../mailboxes/account-changes.ts';
import type { Egress } from '../net/egress.ts';
import { findTokenUrlFault, limitToTokenServer, resolveMailServer } from '../net/mail-server.ts';
import type { FieldError, Pointer } from '../problems.ts';

interface FaultParts {
  egress: Egress;
  allowHttp: boolean;
}

const lookupMs = 2000;
const hostName = /^(?=.{1,253}$)(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*$/;

/** For an early error: every connection checks its address again. The body may be invalid by its schema. */
export async function findServerFaults(
  parts: FaultParts,
  given: Record<string, unknown>,
): Promise<FieldError[]> {
  const found = await Promise.all(
    ['smtp', 'imap'].map((side) => findFaults(parts, readObject(given[side]), `/${side}`)),
  );
  return found.flat();
}

async function findFaults(
  { egress, allowHttp }: FaultParts,
  server: Record<string, unknown>,
  at: Pointer,
): Promise<FieldError[]> {
  const { host, port, oauth2 } = server;
  const errors: FieldError[] = [];
  const add = (pointer: string, code: string, message: string) =>
    errors.push({ pointer: `${at}${pointer}` as Pointer, code, message });
  if (typeof host === 'string') {
    const name = readHost(host);
    if (isIP(name) === 0 && !hostName.test(name)) {
      const advice = /^[^:]+:\d+$|\]:\d+$/.test(name) ? ' Write the port in "port".' : '';
      add('/host', 'invalid_value', `"host" must be a name or an IP address.${advice}`);
    } else {
      // Without a port, of a PATCH, only the host is checked.
      const checked = await resolveMailServer(egress, name, typeof port === 'number' ? port : 25, lookupMs);
      if (!checked.ok && checked.code === 'target_refused')
        add(/^Port /.test(checked.reason) ? '/port' : '/host', 'target_refused', checked.reason);
    }
  }
  const { tokenUrl } = readObject(oauth2);
  if (typeof tokenUrl === 'string') {
    const fault = findTokenUrlFault(tokenUrl, { allowHttp }) ?? (await refuseTokenUrl(egress, tokenUrl));
    if (fault) add('/oauth2/tokenUrl', 'invalid_value', `"tokenUrl" ${fault}`);
  }
  return errors;
}

async function refuseTokenUrl(egress: Egress, tokenUrl: string): Promise<string | null> {
  const url = new URL(tokenUrl);
  const checked = await limitToTokenServer(egress, url).resolve(url.hostname, lookupMs);
  return checked.ok || checked.code === 'dns_failed' ? null : `may not be called: ${checked.reason}`;
}

function readObject(value: unknown): Record<string, unknown> {
  return typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};
}
