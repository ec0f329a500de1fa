/** Loaded first into a service (`--import`): moves its clock by so many milliseconds, but not PostgreSQL's clock. */
const shiftMs = Number(new URL(import.meta.url).searchParams.get('ms'));
const trueNow = Date.now;
const now = () => trueNow() + shiftMs;

globalThis.Date = new Proxy(Date, {
  apply: () => new Date(now()).toString(),
  construct: (target, given, made) => Reflect.construct(target, given.length === 0 ? [now()] : given, made),
  get: (target, key) => (key === 'now' ? now : Reflect.get(target, key)),
});
