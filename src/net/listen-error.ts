/** Why a listener cannot open its port, and which setting to change. */
interface Listener {
  host: string;
  port: number;
  hostSetting: string;
  portSetting: string;
}

/** Undefined for an error that the operator cannot fix with a setting. */
export function describeListenError(
  code: string | undefined,
  { host, port, hostSetting, portSetting }: Listener,
): string | undefined {
  const noAddress = `${hostSetting}=${host} is not an address of this machine. Set ${hostSetting} to an address of this machine.`;
  const messages: Record<string, string> = {
    EADDRINUSE: `Port ${port} on ${host} is in use by another program. Stop that program, or set ${portSetting} to another port.`,
    EACCES: `Port ${port} needs privileges that this process does not have. Set ${portSetting} to a port above 1023.`,
    EADDRNOTAVAIL: noAddress,
    ENOTFOUND: noAddress,
  };
  return messages[code ?? ''];
}
