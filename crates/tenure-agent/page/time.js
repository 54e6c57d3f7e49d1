// Time as people read it. The clock is the database's: the server sends it, and this page counts on from there.

export const SECOND = 1e3, MINUTE = 6e4, HOUR = 36e5, DAY = 864e5;
const NB = "\u00a0";
let base = 0, at = 0, frozen = null;

/** Sets the clock to the database's time, as of now. */
export function setClock(now) {
  base = now;
  at = performance.now();
}
/** While the database is away, what is shown is of the instant it was last seen. */
export function freeze(instant) {
  frozen = instant;
}
/** The database's time now, as far as this page can tell. */
export const clock = () => base + performance.now() - at;
/** The instant that the shown data is of. */
export const now = () => (frozen === null ? clock() : frozen);

const two = (n) => String(n).padStart(2, "0");
export const count = (n) => n.toLocaleString("en-US");
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || one + "s"}`;

/** A length of time: 13 ms, 1.9 s, 42 s, 14 m 02 s, 3 h 05 m, 2 d 4 h. */
export function dur(ms) {
  const s = Math.max(0, ms) / SECOND, f = Math.floor;
  let text;
  if (s < 0.9995) text = `${Math.round(s * SECOND)} ms`;
  else if (s < 9.95) text = `${s.toFixed(1)} s`;
  else if (s < 60) text = `${f(s)} s`;
  else if (s < 3600) text = `${f(s / 60)} m ${two(f(s % 60))} s`;
  else if (s < 86400) text = `${f(s / 3600)} h ${two(f((s / 60) % 60))} m`;
  else text = `${f(s / 86400)} d ${f((s / 3600) % 24)} h`;
  return text.replaceAll(" ", NB);
}
/** How long ago, in its largest unit. */
export function ago(t) {
  const s = Math.max(0, now() - t) / SECOND;
  return s < 60 ? Math.floor(s) + NB + "s" : dur(s * SECOND).split(NB, 2).join(NB);
}
export const iso = (t) => new Date(t).toISOString();
export const hms = (t) => iso(t).slice(11, 19);
export const hm = (t) => iso(t).slice(11, 16);
export const day = (t) => new Date(t).toUTCString().slice(5, 11);
export const when = (t) => (now() - t > 20 * HOUR ? `${day(t)} ${hm(t)}` : hms(t));
