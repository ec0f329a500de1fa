/** Domain names as DNS compares them. Pure. */

/** Lower case, without the dot of the root (RFC 1035 §2.3.3). */
export function plainName(name: string): string {
  return name.toLowerCase().replace(/\.$/, '');
}

/** Empty for a top-level domain. */
export function parentName(name: string): string {
  const dot = name.indexOf('.');
  return dot === -1 ? '' : name.slice(dot + 1);
}
