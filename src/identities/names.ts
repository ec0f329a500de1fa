/** Domain names as DNS compares them. Pure. */

/** Case and the dot of the root mean nothing (RFC 1035 §2.3.3). */
export function plainName(name: string): string {
  return name.toLowerCase().replace(/\.$/, '');
}

/** Empty above a top-level domain. */
export function parentName(name: string): string {
  const dot = name.indexOf('.');
  return dot === -1 ? '' : name.slice(dot + 1);
}
