/** Loaded into a service before anything else (`--import`): its clock is off by so many milliseconds, PostgreSQL's is not. */
const shiftMs = Number(new URL(import.meta.url).searchParams.get('ms'));
const trueNow = Date.now;
const now = () => trueNow() + shiftMs;

globalThis.Date = new Proxy(Date, {
  apply: () => new Date(now()).toString(),
  construct: (target, given, made) => Reflect.construct(target, given.length === 0 ? [now()] : given, made),
  get: (target, key) => (key === 'now' ? now : Reflect.get(target, key)),
});
