// What the page knows: one snapshot, then the differences that the server sends.

import { MINUTE, HOUR, DAY, clock, now, setClock, freeze } from "/time.js";

export const WINDOWS = { "5m": 5 * MINUTE, "1h": HOUR, "24h": DAY, "7d": 7 * DAY };
/** A role that lost its leader so often within ten minutes changes it too often. */
const FLAPS = 5;
/** This many roles of one name with numbers from 0 on are shards of a set. */
const SHARDS = 4;

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
  me: { may_read: true, open_reading: false, tokens: false, name: null, scope: null },
  names: new Set(),
};
let listener = () => {}, source = null, retry = 0, doubt = 0, waiting = [], loading = null;

/** Calls `changed(what)` whenever something has: a set of words. */
export function onChange(changed) {
  listener = changed;
}

/* ---- the connection ---- */

export async function ask(path, options = {}) {
  const response = await fetch(path, { credentials: "same-origin", ...options });
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
  throw error;
}

export async function start() {
  try {
    data.me = await ask("/api/v1/session");
  } catch {
    lost("the page's server does not answer");
  }
  if (!data.me.may_read) {
    listener(new Set(["signin"]));
    return;
  }
  listen();
}

function listen() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("/api/v1/events");
  source.addEventListener("hello", (event) => {
    const hello = JSON.parse(event.data);
    clearTimeout(doubt);
    if (hello.outage) away(hello.outage);
    load(data.window);
  });
  source.addEventListener("reload", () => load(data.window));
  source.addEventListener("change", (event) => {
    const change = { number: +event.lastEventId, ...JSON.parse(event.data) };
    if (loading) waiting.push(change);
    else apply(change);
  });
  source.addEventListener("outage", (event) => away(JSON.parse(event.data)));
  source.onerror = () => {
    // A stream ends now and then, and begins again at once.
    clearTimeout(doubt);
    doubt = setTimeout(() => lost("the page's server does not answer"), 3000);
    // A stream that was refused is not tried again by the browser.
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(start, 3000);
  };
}

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
          if (error.status === 401) listener(new Set(["signin"]));
          else lost(error.message);
          retry = setTimeout(() => load(data.window), 3000);
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
  const first = !data.outage;
  data.outage = { why: outage.why, since: clock() - (outage.age_ms ?? outage.away_ms ?? 0) };
  // What is shown is of the last picture.
  if (first && data.loaded) freeze(data.heard);
  listener(new Set([first ? "outage" : "tick"]));
}
function lost(why) {
  const first = !data.outage;
  if (first) {
    data.outage = { why, since: clock() };
    if (data.loaded) freeze(data.heard);
  }
  data.outage.why = why;
  listener(new Set([first ? "outage" : "tick"]));
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
  const sets = whole.candidate_sets.map((set) => set.map(([m, priority, ready, observer]) => candidate(name(m), priority, ready, observer)));
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
  for (const part of ["schedules", "tx", "alerts"]) data[part] = whole[part];
  data.completeSince = whole.complete_since;
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
    if (part in change) {
      data[part] = change[part];
      what.add(part);
    }
  }
  what.told = told;
  listener(what);
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

/** Sets of shards by name, and the roles that are none. */
export function families() {
  const found = new Map();
  for (const role of data.roles.values()) {
    const parts = /^(.+)-(0|[1-9]\d*)$/.exec(role.name);
    if (!parts) continue;
    if (!found.has(parts[1])) found.set(parts[1], []);
    found.get(parts[1])[+parts[2]] = role;
  }
  const sets = new Map([...found].filter(([, roles]) => roles.length >= SHARDS && Object.keys(roles).length === roles.length));
  const inSet = new Set([...sets.values()].flat());
  return { sets, plain: [...data.roles.values()].filter((role) => !inSet.has(role)) };
}

export const alertsOf = (role) => firing().filter((alert) => alert.role === role);
export const firing = () => (data.alerts || []).filter((alert) => alert.state === "firing");
