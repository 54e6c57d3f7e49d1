// What the page knows: one snapshot, then the differences that the server sends.

import { MINUTE, HOUR, DAY, clock, now, setClock, freeze } from "/time.js";

export const WINDOWS = { "5m": 5 * MINUTE, "1h": HOUR, "24h": DAY, "7d": 7 * DAY };
/** A role that lost its leader so often within ten minutes changes it too often. */
const FLAPS = 5;
/** This many roles of one name with numbers are shown as shards of a set, too. */
const SHARDS = 4;
/** The server says something every two seconds: after this long without a word it is away, or what stands between. */
const SILENCE = 6000;
/** Longer than the server takes for any answer. */
const PATIENCE = 25_000;

export const data = {
  loaded: false,
  roles: new Map(),
  members: new Map(),
  events: new Map(),
  schedules: null,
  tx: null,
  alerts: null,
  window: "1h",
  completeSince: 0,
  number: 0,
  heard: 0,
  outage: null,
  outages: [],                   // [from, until] in which the page had no database
  me: { may_read: true, open_reading: false, tokens: false, name: null, scope: null, title: null },
  names: new Set(),
};
let listener = () => {}, source = null, retry = 0, doubt = 0, waiting = [], loading = null, spoke = 0;

/** Calls `changed(what)` whenever something has: a set of words. */
export function onChange(changed) {
  listener = changed;
}

/* ---- the connection ---- */

export async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", signal: AbortSignal.timeout(PATIENCE), ...options });
  const text = await response.text();
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    body = null;
  }
  if (response.ok) return body;
  const error = new Error((body && body.error) || `the server answered ${response.status}`);
  error.status = response.status;
  // A proxy's own words, and a server that failed, leave open what was done.
  error.certain = !!(body && body.error) && ![500, 504].includes(response.status);
  throw error;
}

export async function start() {
  try {
    data.me = await ask("/api/v1/session");
  } catch {
    lost("the page's server does not answer");
  }
  if (!data.me.may_read) strange();
  else listen();
}

/** The server does not know this browser: what is shown is no longer live. */
function strange() {
  if (source) source.close();
  source = null;
  clearTimeout(retry);
  clearTimeout(doubt);
  lost("sign in to see what is true now", true);
  listener(new Set(["signin"]));
}

function listen() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("/api/v1/events");
  spoke = performance.now();
  const on = (kind, done) => source.addEventListener(kind, (event) => {
    spoke = performance.now();
    clearTimeout(doubt);
    done(event);
  });
  on("hello", (event) => {
    const hello = JSON.parse(event.data);
    if (hello.outage) away(hello.outage);
    load(data.window);
  });
  on("beat", () => {});
  on("reload", () => load(data.window));
  on("change", (event) => {
    const change = { number: +event.lastEventId, ...JSON.parse(event.data) };
    if (loading) waiting.push(change);
    else apply(change);
  });
  on("outage", (event) => away(JSON.parse(event.data)));
  source.onerror = () => {
    // A stream ends now and then, and begins again at once.
    clearTimeout(doubt);
    doubt = setTimeout(() => lost("the page's server does not answer"), 3000);
    // A stream that was refused is not tried again by the browser.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(start, 3000);
  };
}

// A stream that is open and silent (a server that stands still, a connection that is dead on the way) has no error.
setInterval(() => {
  if (!source || performance.now() - spoke < SILENCE) return;
  lost("the page's server is silent");
  listen();
}, 1000);

/** Loads the whole picture with the terms of a window; differences that come meanwhile wait. */
export function load(window) {
  data.window = window;
  if (!loading) {
    loading = (async () => {
      let wanted;
      do {
        wanted = data.window;
        try {
          take(await ask(`/api/v1/snapshot?window=${wanted}`));
        } catch (error) {
          if (error.status === 401) strange();
          else {
            lost(error.certain ? error.message : "the page's server does not answer");
            retry = setTimeout(() => load(data.window), 3000);
          }
        }
      } while (wanted !== data.window);
      loading = null;
      const late = waiting.filter((change) => change.number > data.number);
      waiting = [];
      late.forEach(apply);
    })();
  }
  return loading;
}

function away(outage) {
  const first = !data.outage, other = !first && data.outage.why !== outage.why;
  data.outage = { why: outage.why, since: clock() - (outage.age_ms ?? outage.away_ms ?? 0) };
  // What is shown is of the last picture.
  if (first && data.loaded) freeze(data.heard);
  listener(new Set([first || other ? "outage" : "tick"]));
}
function lost(why, signin = false) {
  const first = !data.outage;
  if (first) {
    data.outage = { why, since: clock() };
    if (data.loaded) freeze(data.heard);
  }
  // Another reason is told, too.
  const other = data.outage.why !== why || !!data.outage.signin !== signin;
  Object.assign(data.outage, { why, signin });
  listener(new Set([first || other ? "outage" : "tick"]));
}
function back() {
  const was = data.outage;
  data.outage = null;
  freeze(null);
  return was;
}

/* ---- taking in ---- */

function take(whole) {
  const was = whole.outage ? null : back();
  data.heard = whole.now;
  setClock(whole.now + (whole.outage ? whole.outage.age_ms || 0 : 0));
  const name = (index) => (index === null ? null : whole.names[index]);
  // A candidate is a number, with its priority if that is not 0.
  const sets = whole.candidate_sets.map((set) => set.map((entry) => {
    const [code, priority] = Array.isArray(entry) ? entry : [entry, 0];
    return candidate(name(Math.floor(code / 4)), priority, code & 2, code & 1);
  }));
  const strangers = new Set(whole.strangers);
  const row = (columns, values) => Object.fromEntries(columns.map((column, i) => [column, values[i]]));
  data.roles = new Map();
  for (const values of whole.roles) {
    const role = row(whole.role_columns, values);
    put({
      ...role, leader: name(role.leader), last: name(role.last), paused: !!role.paused, ordered: !!role.ordered,
      stranger: strangers.has(role.name), candidates: sets[role.candidates],
    });
  }
  const list = [...data.roles.values()];
  for (const values of whole.terms) {
    const term = row(whole.term_columns, values);
    list[term.role].terms.push({ ...term, member: name(term.member) });
  }
  list.forEach(sortTerms);
  data.members = new Map(whole.members.map((member) => [member.name, member]));
  data.events = new Map(whole.events.map((event) => [event[0], event]));
  data.schedules = whole.schedules && { ...whole.schedules, list: sorted(whole.schedules.list, byName) };
  data.tx = whole.tx && sorted(whole.tx, byRole);
  data.alerts = whole.alerts && sorted(whole.alerts, byTime);
  data.completeSince = whole.complete_since;
  data.outages = whole.outages;
  data.number = whole.number;
  data.loaded = true;
  whole.names.forEach((known) => data.names.add(known));
  if (whole.outage) away(whole.outage);
  listener(new Set(["all", ...(was ? ["back"] : [])]));
}

const candidate = (member, priority, ready, observer) => ({ member, priority, ready: !!ready, observer: !!observer });

/** Puts a role's row in; its ended terms stay. */
function put(role) {
  const old = data.roles.get(role.name);
  role.terms = old ? old.terms : [];
  data.roles.set(role.name, role);
  for (const known of [role.leader, role.last, ...role.candidates.map((c) => c.member)]) if (known) data.names.add(known);
}
function sortTerms(role) {
  role.terms.sort((a, b) => a.epoch - b.epoch);
}

function apply(change) {
  if (!data.loaded || change.number <= data.number) return;
  if (change.number !== data.number + 1) {
    // One is missing.
    load(data.window);
    return;
  }
  const what = new Set(["tick"]);
  const was = back();
  if (was) what.add("back").add("all");
  data.number = change.number;
  setClock(change.now);
  data.heard = change.now;
  const told = [];
  for (const role of change.roles || []) {
    const old = data.roles.get(role.name);
    if (!old) what.add("all");
    const fresh = { ...role, candidates: role.candidates.map(([...c]) => candidate(...c)) };
    put(fresh);
    if (old && (old.leader !== fresh.leader || old.state !== fresh.state)) told.push([old, fresh]);
    what.add("roles");
  }
  for (const gone of change.roles_gone || []) {
    data.roles.delete(gone);
    what.add("all");
  }
  for (const term of change.terms || []) {
    const role = data.roles.get(term.role);
    if (!role || role.terms.some((known) => known.epoch === term.epoch)) continue;
    role.terms.push(term);
    data.names.add(term.member);
    sortTerms(role);
    what.add("roles");
  }
  for (const member of change.members || []) {
    const old = data.members.get(member.name);
    if (!old || old.silent !== member.silent) what.add("members").add("roles");
    data.names.add(member.name);
    data.members.set(member.name, member);
  }
  for (const gone of change.members_gone || []) {
    data.members.delete(gone);
    what.add("members").add("roles");
  }
  for (const event of change.events || []) {
    data.events.set(event[0], event);
    what.add("events");
  }
  for (const part of ["schedules", "tx", "alerts"]) {
    if (!(part in change)) continue;
    what.add(part);
    const news = change[part];
    if (news === null) data[part] = null;
    else if (part === "tx") data.tx = merged(data.tx, news, (account) => account.account, byRole);
    else if (part === "alerts") data.alerts = merged(data.alerts, news, (alert) => `${alert.name} ${alert.key}`, byTime);
    else {
      const old = data.schedules || { dead: [], dead_count: 0, ended: [] };
      data.schedules = {
        list: merged(old.list, news, (schedule) => schedule.name, byName),
        dead: news.dead || old.dead, dead_count: news.dead_count ?? old.dead_count, ended: [...old.ended, ...(news.ended || [])].slice(-50),
      };
    }
  }
  what.told = told;
  listener(what);
}

const byName = (a, b) => (a.name < b.name ? -1 : 1), byRole = (a, b) => (a.role < b.role ? -1 : 1), byTime = (a, b) => a.since - b.since;
const sorted = (list, order) => [...list].sort(order);
/** Rows with what is new of them: changed rows in full, and the keys of those that are gone. */
function merged(rows, news, key, order) {
  const all = new Map((rows || []).map((row) => [key(row), row]));
  (news.list || []).forEach((row) => all.set(key(row), row));
  (news.gone || []).forEach((gone) => all.delete(gone));
  return sorted([...all.values()], order);
}

/* ---- what follows from it ---- */

export const leads = (role) => role.state === "led";
/** A role's terms in order, the current one last and without an end. */
export function termsOf(role) {
  const ended = role.terms.filter((term) => term.epoch !== role.epoch || !leads(role));
  if (!leads(role) || role.since === null) return ended;
  return [...ended, { role: role.name, epoch: role.epoch, member: role.leader, from: role.since, waited: role.waited, until: null, how: null }];
}
export const asked = (term) => term.how === "released";
/** Whether a term was replaced when the database was back: it may have ended at any time of the outage. */
export const endedInOutage = (term) => term.how === "replaced"
  && data.outages.some(([from, to]) => term.from < from && from < term.until && term.until < to + MINUTE / 2);
/** How often the role lost its leader, without a release, within `ms`. */
export const losses = (role, ms) => role.terms.filter((term) => !asked(term) && now() - term.until < ms).length;
/** vacant, flapping, paused or led. */
export function stateOf(role) {
  if (leads(role)) return losses(role, 10 * MINUTE) >= FLAPS ? "flapping" : "led";
  return role.paused ? "paused" : "vacant";
}
export const silent = (name) => {
  const member = data.members.get(name);
  return !member || now() - member.seen > member.lease;
};
/** The ready candidates beside the leader, the next one first. */
export const successors = (role) =>
  role.candidates.filter((c) => c.ready && !c.observer && !silent(c.member) && !(leads(role) && c.member === role.leader));
/** Since when the role has no leader. */
export function vacantSince(role) {
  const last = role.terms.at(-1);
  return role.since ?? (last ? last.until : null);
}

/** Sets of shards: roles of one name with numbers, in the order of these. By name alone, so that a role of a set is
 * in every list of roles as well. */
export function families() {
  const found = new Map();
  for (const role of data.roles.values()) {
    const parts = /^(.+)-(0|[1-9]\d{0,8})$/.exec(role.name);
    if (!parts) continue;
    if (!found.has(parts[1])) found.set(parts[1], []);
    found.get(parts[1]).push([+parts[2], role]);
  }
  const sets = new Map();
  for (const [name, list] of found) if (list.length >= SHARDS) sets.set(name, list.sort((a, b) => a[0] - b[0]).map(([, role]) => role));
  return { sets, inSet: new Set([...sets.values()].flat()) };
}

export const alertsOf = (role) => firing().filter((alert) => alert.role === role);
export const firing = () => (data.alerts || []).filter((alert) => alert.state === "firing");
