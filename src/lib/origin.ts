/** URLs of this service: the same in the banner of the start, in links and in what commands print. */
import { isIPv6 } from 'node:net';

/** Where a person signs in. After `#`, which browsers do not send: a token in the path would be in the logs of proxies. */
export function signInUrl(baseUrl: string, token: string): string {
  return `${baseUrl}/app/sign-in#${token}`;
}

export function originOf(host: string, port: number): string {
  const name = ['127.0.0.1', '0.0.0.0', '::1', '::'].includes(host) ? 'localhost' : host;
  return `http://${isIPv6(name) ? `[${name}]` : name}:${port}`;
}
