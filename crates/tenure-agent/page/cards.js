// The cards, in the order of a person's questions: is every role led, what needs me, what just happened, who
// leads what. Each is drawn from the data alone.

import { $, fill, h } from "/dom.js";
import { HOUR, MINUTE, SECOND, ago, clock, count, day, dur, hm, hms, iso, now, plural, when } from "/time.js";
import { alertsOf, asked, data, endedInOutage, families, firing, leads, losses, silent, stateOf, successors, termsOf, vacantSince } from "/store.js";
import { agoOf, chip, dim, heartbeat, letter, sign, since, slot, state, swatch, who } from "/look.js";

const STATES = { vacant: ["crit", "Vacant"], flapping: ["warn", "Flapping"], paused: ["paused", "Paused"], led: ["ok", "Led"] };
const RANK = { vacant: 0, flapping: 1, paused: 2, led: 3 };
const PAGE = 25;
/** So many rows of one kind are shown at once, so that no kind hides another. */
const KIND = 6;
/** `all`: the kinds of exceptions that are shown in full. */
export const view = { query: "", page: 0, category: "all", selected: null, shown: [], all: new Set() };

const off = () => (data.outage ? true : null);
const text = (value) => (value === null || value === undefined ? "" : String(value));
export const button = (label, attributes, cls = "") => h("button.btn", { type: "button", class: cls, ...attributes }, label);
export const link = (name) =>
  data.roles.has(name) ? h("a", { href: `?role=${encodeURIComponent(name)}`, "data-role": name }, name) : name;

function card(id, title, meta, body, right) {
  const top = h("div.top", null, h("h2", { id: `h-${id}` }, title), dim(meta), h("span.sp"), right);
  fill($(`#${id}`), [top, ...[body].flat().filter(Boolean)]);
}
/** Columns are "classes|Heading"; a row is [attributes, cell, cell, …]. */
export function table(id, columns, rows) {
  const heads = columns.map((column) => (column.includes("|") ? column.split("|") : ["", column]));
  return h("table", { "aria-labelledby": `h-${id}` },
    h("thead", null, h("tr", null, heads.map(([cls, head]) => h("th", { scope: "col", class: cls }, head)))),
    h("tbody", null, rows.map(([attributes, ...cells]) => h("tr", attributes, cells.map((cell, i) => h("td", { class: heads[i][0] }, cell))))));
}
export const segments = (name, choices, chosen) =>
  choices.map(([key, label]) => h("button", { type: "button", [`data-${name}`]: key, "aria-pressed": String(key === chosen) }, label));

/* ---- which roles ---- */

export const matches = (role) =>
  !view.query || role.name.toLowerCase().includes(view.query) || (leads(role) && who(role.leader).toLowerCase().includes(view.query));
const inOrder = new Intl.Collator("en", { numeric: true }).compare;
/** Exceptions first, then by name; shards that are led come last: they are on their map, too. */
export function ranked() {
  const { inSet } = families();
  return [...data.roles.values()]
    .map((role) => [RANK[stateOf(role)], inSet.has(role) && leads(role) ? 1 : 0, role])
    .sort((a, b) => a[0] - b[0] || a[1] - b[1] || inOrder(a[2].name, b[2].name))
    .map(([, , role]) => role);
}

/* ---- is every role led? ---- */

export function verdict() {
  document.body.classList.toggle("blank", !data.loaded);
  const roles = [...data.roles.values()], total = roles.length;
  const by = { led: [], flapping: [], paused: [], vacant: [] };
  roles.forEach((role) => by[stateOf(role)].push(role));
  const out = data.outage, vacant = by.vacant.length, paused = by.paused.length, flapping = by.flapping.length;
  const led = `${count(total - vacant - paused)} of ${count(total)} ${total === 1 ? "role" : "roles"} led`;
  const members = [...data.members.values()], beating = members.filter((member) => !silent(member.name)).length;
  let head, sign_, below;
  if (!data.loaded) {
    [head, sign_] = out && out.signin ? [["Sign in to see the roles"], "none"] : [out ? [`Not known: ${out.why}`] : ["Asking the database…"], out ? "crit" : "none"];
    below = out && !out.signin ? "The page asks again by itself." : "";
  } else if (out) {
    [head, sign_] = [[`Not known since ${hms(now())}: ${out.why}`], "crit"];
    below = `Last seen: ${led}. A gate shuts within its lease when the database does not answer, so no leader acts for longer than that.`;
  } else if (!total) {
    [head, sign_, below] = [["No role yet"], "none", ""];
  } else {
    const longest = Math.min(...by.vacant.map((role) => vacantSince(role) ?? Infinity));
    const timed = Number.isFinite(longest) ? [" for ", h("span", { "data-since": longest }, dur(now() - longest))] : [];
    head = vacant
      ? [led, " · ", h("em", null, `${count(vacant)} vacant${vacant > 1 && timed.length ? ", the longest" : ""}`, timed), paused ? ` · ${paused} paused` : null]
      : paused ? [`${led} · ${paused} paused by order`]
      : [total === 1 ? "The one role is led" : `All ${count(total)} roles are led`];
    sign_ = vacant ? "crit" : flapping || beating < members.length || paused ? "warn" : "ok";
    const alone = roles.filter((role) => leads(role) && !successors(role).length).length;
    below = [flapping ? `${plural(flapping, "role changes", "roles change")} leader too often` : null,
      alone ? `${plural(alone, "role is", "roles are")} led without a ready successor` : "every leader has a ready successor"].filter(Boolean).join(" · ");
  }
  const title = h("div", null, h("h1", null, sign(sign_), h("span", null, head)), h("p.dim", null, below));
  document.title = `${out && out.signin ? "Signed out" : out ? "Not known" : vacant ? `${vacant} vacant` : total ? "All led" : "No role"} · ${data.me.title ? `${data.me.title} · ` : ""}Tenure`;
  if (!total) {
    fill($("#verdict"), [title]);
    return;
  }
  const failovers = roles.flatMap((role) => gaps(role).filter((gap) => !asked(gap.before) && now() - gap.until < HOUR));
  const shards = [...families().inSet];
  const dead = data.schedules ? data.schedules.dead_count : 0;
  const open = (data.tx || []).reduce((sum, account) => sum + account.open, 0);
  const stuck = (data.tx || []).reduce((sum, account) => sum + account.stuck, 0);
  const stat = (id, value, label, cls, small) =>
    h("div", null, h("dt", null, h("a", { href: `#${id}` }, label)), h("dd", { class: cls || "" }, value, small ? h("small", null, ` ${small}`) : null));
  const stats = h("dl.stats.data", null,
    data.alerts ? stat("needs", count(firing().length), "Alerts firing", firing().length ? "crit" : "") : null,
    stat("members", count(beating), "Members beating", beating < members.length ? "warn" : "", `of ${count(members.length)}`),
    stat("timeline", count(failovers.length), "Failovers, 1 h"),
    stat("timeline", failovers.length ? longestOf(failovers).replace("at least", "≥") : "–", "Longest gap, 1 h"),
    shards.length ? stat("shards", count(shards.filter(leads).length), "Shards led", shards.every(leads) ? "" : "crit", `of ${count(shards.length)}`) : null,
    data.schedules ? stat("needs", count(dead), "Dead letters", dead ? "warn" : "") : null,
    data.tx ? stat("tx", count(open), "Transactions open", stuck ? "warn" : "", stuck ? `${stuck} stuck` : "") : null);
  const many = total > 120;
  const ticks = Object.keys(by).flatMap((kind) =>
    many ? (by[kind].length ? [h("i", { class: kind, style: { flexGrow: String(by[kind].length) } })] : []) : by[kind].map((role) => h("i", { class: kind, title: role.name })));
  fill($("#verdict"), [title, stats, h("div.roll.data", { "aria-hidden": "true", class: many ? "many" : "" }, ticks)]);
}

/** How long the longest of some gaps was, as far as is known. */
const longestOf = (list) => `${list.some((gap) => gap.atLeast) ? "at least " : ""}${dur(Math.max(...list.map((gap) => gap.until - gap.from)))}`;

/** The times between two terms of a role: {before, after, from, until}; the last may be open. */
export function gaps(role) {
  const terms = termsOf(role), found = [];
  terms.forEach((term, i) => {
    if (term.until === null) return;
    const after = terms[i + 1] || null;
    found.push({ role, before: term, after, from: term.until, until: after ? after.from : now(), open: !after, atLeast: endedInOutage(term) });
  });
  return found;
}

/* ---- what needs me? ---- */

function whyVacant(role) {
  const ready = successors(role), waiting = role.candidates.filter((c) => !c.observer);
  const held = role.stranger ? "Its lock is held by a session that is no member's. " : "";
  const how = {
    silent: () => `${who(role.leader)} has been silent for longer than its lease; the server ends its session.`,
    taking_over: () => `${who(role.leader)} takes over and waits until the last leader's lease is over.`,
    gone: () => `${who(role.leader)} is gone without a release.`,
    vacant: () => (role.last ? `${who(role.last)} led it last.` : "No member has led it yet."),
  }[role.state] || (() => "");
  const next = role.state === "taking_over" ? "" : ready.length ? ` ${ready.map((c) => who(c.member)).join(", ")} may claim it.`
    : waiting.length ? ` ${waiting.map((c) => who(c.member)).join(", ")}: not ready.` : " No candidate takes part.";
  return held + how() + next;
}

export function needs() {
  const out = off(), kinds = new Map(), told = new Set(), roles = [...data.roles.values()];
  const alertTag = (alert) => h("span.tag", null, `alert ${alert.name} firing ${ago(alert.since)}${alert.notified ? `, sent to ${alert.notified}` : ""}`);
  const row = (kind, key, severity, title, tags, why, at, action) => {
    const label = severity === "crit" ? "Critical" : severity === "paused" ? "Paused" : "Warning";
    if (!kinds.has(kind)) kinds.set(kind, []);
    kinds.get(kind).push(() => h("li.x", { class: severity === "crit" ? "is-crit" : "", "data-key": `${kind} ${key}` }, h("span.sev", null, state(severity, label)),
      h("div.what", null, h("div", null, h("b", null, title), tags), h("p", null, typeof why === "function" ? why() : why)),
      h("span.since.num", null, at ? since(at) : ""), h("span.go", null, action)));
  };
  const open = (name) => button("Open role", { "data-open": name });
  const vacant = roles.filter((role) => stateOf(role) === "vacant"), cause = (role) => `${role.state} ${role.leader || role.last}`;
  const causes = new Map();
  vacant.forEach((role) => causes.set(cause(role), [...(causes.get(cause(role)) || []), role]));
  for (const [key, list] of causes) {
    list.forEach((role) => alertsOf(role.name).forEach((alert) => told.add(alert)));
    if (list.length < KIND || view.all.has("vacant")) {
      for (const role of list) row("vacant", role.name, "crit", `${role.name} has no leader`, alertsOf(role.name).map(alertTag), () => whyVacant(role), vacantSince(role), open(role.name));
      continue;
    }
    // One cause, one row.
    const [first] = list, member = who(first.leader || first.last), alerts = list.flatMap((role) => alertsOf(role.name)).length;
    const why = { silent: `${member} leads them and is silent`, gone: `${member} led them and is gone`, taking_over: `${member} takes them over` }[first.state] || (first.last ? `${member} led them last` : "No member has led them yet");
    row("vacant", key, "crit", `${count(list.length)} roles have no leader`, alerts ? h("span.tag", null, plural(alerts, "alert")) : [],
      `${why}: ${list.slice(0, 4).map((role) => role.name).join(", ")} and ${count(list.length - 4)} more.`,
      Math.min(...list.map((role) => vacantSince(role) ?? Infinity).filter(Number.isFinite), now()), button("Show each", { "data-needs": "vacant" }));
  }
  for (const role of roles) {
    if (stateOf(role) !== "flapping") continue;
    const lost = role.terms.filter((term) => !asked(term) && now() - term.until < 10 * MINUTE);
    const names = [...new Set(lost.map((term) => who(term.member)))];
    alertsOf(role.name).forEach((alert) => told.add(alert));
    row("flapping", role.name, "warn", `${role.name} changes leader too often`, alertsOf(role.name).map(alertTag),
      `${plural(lost.length, "loss", "losses")} in 10 m, by ${names.join(" and ")}.`, lost[0].until, open(role.name));
  }
  for (const alert of firing()) {
    if (told.has(alert)) continue;
    row("alerts", `${alert.name} ${alert.key}`, alert.severity === "critical" ? "crit" : "warn", alert.summary || alert.name, [alertTag(alert)], [alert.role, alert.member && who(alert.member), alert.detail].filter(Boolean).join(" · "), alert.since,
      alert.role && data.roles.has(alert.role) ? open(alert.role) : null);
  }
  for (const member of data.members.values()) {
    if (!silent(member.name)) continue;
    const led = roles.filter((role) => role.leader === member.name).length;
    row("silent", member.name, "warn", `Member ${who(member.name)} is silent`, [], `Last heartbeat ${when(member.seen)}. ${led ? `It holds ${plural(led, "role")}, with its gates shut.` : "It holds no role."}`,
      member.seen, h("a.btn", { href: "#members" }, "Show"));
  }
  for (const role of roles) {
    if (stateOf(role) !== "paused") continue;
    row("paused", role.name, "paused", `${role.name} is paused`, [], "No member leads it until it is resumed.", vacantSince(role),
      button("Resume…", { "data-order": "resume", "data-for": role.name, disabled: out }));
  }
  const dead = data.schedules || { dead: [], dead_count: 0 };
  for (const letter_ of dead.dead) {
    const words = [`Slot ${when(letter_.slot)}`, letter_.state === "interrupted" ? "interrupted" : letter_.reason || `exit ${letter_.code ?? "unknown"}`, `after ${plural(letter_.attempts, "attempt")}`];
    const last = text(letter_.output).trim().split("\n").at(-1);
    row("dead", `${letter_.schedule} ${letter_.slot}`, "warn", `${letter_.schedule} failed for good`, [], [words.join(" · "), last ? [" · ", h("code", null, last.slice(0, 160))] : null], letter_.ended || letter_.slot,
      button("Run again…", { "data-again": letter_.schedule, "data-slot": letter_.at, disabled: out }));
  }
  const WORDS = { vacant: "causes of vacant roles", flapping: "roles that change leader too often", alerts: "alerts", silent: "silent members", paused: "paused roles", dead: "dead letters" };
  const rows = [];
  for (const [kind, list] of kinds) {
    const most = view.all.has(kind) ? 200 : KIND, hidden = Math.max(0, list.length - most);
    rows.push(...list.slice(0, most).map((make) => make()));
    if (hidden) rows.push(h("li.x.rest", { "data-key": `${kind} rest` }, h("p.dim", null, `and ${count(hidden)} more ${WORDS[kind]}`), view.all.has(kind) ? null : button("Show all", { "data-needs": kind }, "quiet")));
  }
  if (dead.dead_count > dead.dead.length) rows.push(h("li.x.rest", { "data-key": "dead older" }, h("p.dim", null, `${count(dead.dead_count - dead.dead.length)} older dead letters: `, h("code", null, "tenure schedule dead"))));
  const counted = [...kinds].reduce((sum, [kind, list]) => sum + (kind === "vacant" ? vacant.length : list.length), 0), total = data.roles.size;
  const body = rows.length
    ? h("ul", { tabindex: "0", "aria-label": "Exceptions" }, rows)
    : total ? h("div.calm", null, sign("ok"), h("p", null, "Nothing. Every role is led, every member beats, no run failed for good."))
    : h("div.calm", null, h("p", null, "Start a program under a role, on as many machines as you like. One of them runs it, and the role appears here.", h("br"), h("code", null, "tenure run --role demo -- ./my-program")));
  card("needs", total || !data.loaded ? "Needs you" : "Begin", counted ? count(counted) : "", body);
}

/* ---- what just happened? ---- */

/** Who ordered it: the words after "asked by". */
export function orderer(detail) {
  const found = /^asked by (.+?)(?:, by the page)?(?:, (?:to|schedule|terms|from|sessions).*)?$/.exec(detail || "");
  if (!found) return "an operator";
  const operator = /^operator on ([^,]+), pid \d+, user ([^,]+)/.exec(found[1]);
  return operator ? `${operator[2]} on ${operator[1]}` : found[1];
}
const ORDERS = {
  step_down: (event) => [`${orderer(event[6])} asked ${who(event[4])} to step down from `, link(event[3])],
  pause: (event) => [`${orderer(event[6])} paused `, link(event[3])],
  resume: (event) => [`${orderer(event[6])} resumed `, link(event[3])],
  force_release: (event) => [`${orderer(event[6])} freed the lock of `, link(event[3]), " by force"],
  run_schedule: (event) => [`${orderer(event[6])} ordered a run: ${text(event[6]).replace(/^.*?, schedule /, "")}`],
};
const TOGETHER = 10 * SECOND;

function stories() {
  const found = [];
  const all = [...data.roles.values()].flatMap(gaps).filter((gap) => gap.from > now() - 12 * HOUR).sort((a, b) => a.from - b.from);
  const open = new Map();
  const restless = new Map();
  for (const gap of all) {
    // A role that changes its leader too often is one story.
    if (!asked(gap.before) && stateOf(gap.role) === "flapping") {
      restless.set(gap.role, [...(restless.get(gap.role) || []), gap]);
      continue;
    }
    const key = `${asked(gap.before)} ${gap.before.member}`;
    const story = open.get(key);
    if (story && gap.from - story.at < TOGETHER) story.gaps.push(gap);
    else {
      const fresh = { at: gap.from, gaps: [gap], asked: asked(gap.before), member: gap.before.member };
      open.set(key, fresh);
      found.push(fresh);
    }
  }
  const told = found.map(({ at, gaps: list, asked: calm, member }) => {
    const closed = list.filter((gap) => !gap.open), unled = list.length - closed.length;
    const longest = closed.length ? `, longest gap ${longestOf(closed)}` : "";
    if (list.length === 1) {
      const [gap] = list;
      if (gap.open) return [at, [link(gap.role.name), calm ? `: released by ${who(member)}` : `: ${who(member)} lost it`, gap.role.paused ? "" : ", no leader since"]];
      const again = gap.after.member === member ? `${who(member)} again` : `${who(member)} to ${who(gap.after.member)}`;
      return [at, [link(gap.role.name), calm ? `: ${again} in ${dur(gap.until - gap.from)}, as asked` : `: ${again}, ${longestOf(list)} without a leader`]];
    }
    const verb = calm ? "handed over" : "lost";
    return [at, [chip(member), ` ${verb} ${plural(list.length, "role")}${longest}${unled ? `; ${unled} without a leader` : ""}`]];
  });
  for (const [role, list] of restless) {
    told.push([list.at(-1).until, [link(role.name), `: ${plural(list.length, "change")} of leader since ${hm(list[0].from)}, longest gap ${longestOf(list)}`]]);
  }
  for (const event of data.events.values()) if (ORDERS[event[2]]) told.push([event[1], ORDERS[event[2]](event)]);
  for (const dead of (data.schedules || { dead: [] }).dead) told.push([dead.ended || dead.slot, [`${dead.schedule}: slot ${hm(dead.slot)} became a dead letter`]]);
  for (const alert of firing()) told.push([alert.since, [`Alert ${alert.name} fired`, alert.role ? [" for ", link(alert.role)] : null]]);
  return told.sort((a, b) => b[0] - a[0]);
}
export function recent() {
  const list = stories().slice(0, 6);
  card("recent", "Just happened", "", list.length
    ? h("ol", null, list.map(([at, words]) => h("li.st", null, dim(agoOf(at), " ago"), h("span", null, words))))
    : h("div.calm", null, dim("Nothing in the time that is loaded.")), h("a.dim", { href: "#events" }, "All events"));
}

/* ---- who leads what? ---- */

export function roles() {
  const all = ranked().filter(matches);
  view.page = Math.min(view.page, Math.max(0, Math.ceil(all.length / PAGE) - 1));
  view.shown = all.slice(view.page * PAGE, view.page * PAGE + PAGE);
  const rows = view.shown.map((role) => {
    const kind = stateOf(role), led = leads(role), next = successors(role);
    const label = { taking_over: "Taking over", silent: "Silent leader" }[role.state];
    const act = role.paused ? ["Resume…", "resume"] : led ? ["Step down…", "step_down"] : null;
    return [{ class: `${kind}${view.selected === role.name ? " on" : ""}`, "data-row": role.name, "data-key": role.name },
      [h("b", null, link(role.name)), h("span.sub.dim", null, `${led ? who(role.leader) : "no leader"} · epoch ${role.epoch}`)],
      [state(STATES[kind][0], label || STATES[kind][1]), role.ordered ? h("span.tag", null, "step-down ordered") : null],
      led ? chip(role.leader) : dim(role.last || role.leader ? `none, last ${who(role.leader || role.last)}` : "none yet"),
      h("span.mono", null, String(role.epoch)),
      led ? since(role.since) : vacantSince(role) ? h("span", { class: role.paused ? "dim" : "crit" }, "no leader ", since(vacantSince(role))) : dim("never"),
      led ? heartbeat(role.leader) : "–",
      next.length ? h("span.m", null, next.slice(0, 6).map((c) => swatch(c.member)), next.length > 6 ? dim(`+${next.length - 6}`) : null, h("span.sr", null, next.map((c) => who(c.member)).join(", "))) : state(led ? "warn" : "crit", "none"),
      dim(role.policy),
      act ? button(act[0], { "data-order": act[1], "data-for": role.name, disabled: off() }, "quiet") : button("Open", { "data-open": role.name }, "quiet")];
  });
  const body = [view.shown.length
    ? table("roles", ["Role", "State", "w1|Leader", "w1 num|Epoch", "num|Led for", "w1 pl|Heartbeat", "w1|Ready successors", "w1 w2|Policy", "w1 num|Orders"], rows)
    : h("div.calm", null, data.roles.size ? "No role matches. Esc clears the search." : "No role yet.")];
  if (all.length > PAGE) {
    body.push(h("div.top.more", null, h("span.sp"), dim(`${count(view.page * PAGE + 1)}–${count(view.page * PAGE + view.shown.length)} of ${count(all.length)}`),
      button("Previous", { "data-page": "-1", disabled: view.page ? null : true }), button("Next", { "data-page": "1", disabled: (view.page + 1) * PAGE < all.length ? null : true })));
  }
  card("roles", "Roles", view.query ? `${count(all.length)} of ${count(data.roles.size)} match “${view.query}”` : count(all.length), body,
    h("span.dim.w1", null, h("kbd", null, "j"), " ", h("kbd", null, "k"), " move · ", h("kbd", null, "Enter"), " opens"));
}

export function members() {
  const list = [...data.members.values()].sort((a, b) => (who(a.name) < who(b.name) ? -1 : 1));
  const shards = families().inSet;
  const beating = list.filter((member) => !silent(member.name)).length;
  const held = new Map();
  for (const role of data.roles.values()) {
    if (!leads(role)) continue;
    const counts = held.get(role.leader) || [0, 0];
    counts[shards.has(role) ? 1 : 0] += 1;
    held.set(role.leader, counts);
  }
  const unready = new Map();
  for (const role of data.roles.values()) for (const c of role.candidates) if (!c.ready && !c.observer) unready.set(c.member, (unready.get(c.member) || 0) + 1);
  const rows = list.slice(0, 200).map((member) => {
    const [own, sharded] = held.get(member.name) || [0, 0], n = unready.get(member.name);
    const cells = [{ "data-key": member.name }, chip(member.name),
      silent(member.name) ? state("crit", "Silent") : n ? state("warn", `Not ready for ${plural(n, "role")}`) : state("ok", "Beats"),
      heartbeat(member.name), count(own)];
    if (shards.size) cells.push(count(sharded));
    return [...cells, dim(member.host), dim(dur(member.lease)), dim(agoOf(member.joined), " ago")];
  });
  card("members", "Members", `${beating} of ${list.length} beating`,
    list.length ? table("members", ["Member", "State", "Heartbeat", "num|Roles", ...(shards.size ? ["w1 num|Shards"] : []), "w1|Host", "w1|Lease", "w1 num|Joined"], rows)
    : h("div.calm", null, "No member takes part now."));
  $("#members").classList.toggle("wide", !shards.size);
}

export function shards() {
  const { sets } = families();
  $("#shards").hidden = !sets.size;
  if (!sets.size) return;
  const body = [];
  let total = 0, led = 0;
  for (const [name, list] of sets) {
    const counts = new Map();
    list.filter(leads).forEach((role) => counts.set(role.leader, (counts.get(role.leader) || 0) + 1));
    total += list.length;
    led += list.filter(leads).length;
    const moved = (role) => leads(role) && now() - role.since < 5 * MINUTE && role.terms.length > 0;
    body.push(h("div.split", null, h("b", null, name), [...counts].sort((a, b) => (who(a[0]) < who(b[0]) ? -1 : 1)).map(([member, n]) => h("span", null, chip(member), " ", h("b", null, count(n))))),
      h("ul.map", { class: list.length > 128 ? "many" : "", "aria-label": `Shards of ${name}, by leader` }, list.map((role) => {
        const words = leads(role) ? `${role.name}: ${who(role.leader)}, epoch ${role.epoch}, led for ${dur(now() - role.since)}` : `${role.name}: no leader`;
        // One of them is a stop for the tabulator; arrows go on from there.
        return h("li", { class: leads(role) ? `m${slot(role.leader)}${moved(role) ? " mv" : ""}` : "none" },
          h("a", { href: `?role=${encodeURIComponent(role.name)}`, "data-role": role.name, tabindex: role === list[0] ? "0" : "-1", title: words },
            h("b", { "aria-hidden": "true" }, leads(role) ? letter(role.leader) : "–"), h("span.sr", null, words)));
      })),
      h("p.note", null, list.some(moved) ? [sign("none"), " moved within the last 5 m"] : evenness(list, counts)));
  }
  card("shards", "Shards", `${count(led)} of ${count(total)} led`, body);
}
function evenness(list, counts) {
  const sizes = [...counts.values()];
  return sizes.length && Math.max(...sizes) - Math.min(...sizes) <= 1 ? "Even within one." : `${count(list.length)} shards over ${plural(counts.size, "member")}.`;
}

export function schedules() {
  const part = data.schedules;
  $("#schedules").hidden = !part || !part.list.length;
  if (!part || !part.list.length) return;
  const shown = part.list.filter((s) => !view.query || s.name.toLowerCase().includes(view.query) || s.role.toLowerCase().includes(view.query));
  const LAST = { succeeded: ["ok", "done"], failed: ["crit", "failed"], interrupted: ["crit", "interrupted"], running: ["none", "runs"], queued: ["none", "queued"], waiting: ["warn", "waits for its retry"], replaced: ["none", "replaced"], missed: ["warn", "missed"], skipped: ["warn", "skipped"] };
  const rows = shown.map((s) => {
    const last = s.runs.at(-1), dead = part.dead.filter((d) => d.schedule === s.name).length;
    const cron = [s.cron, s.timezone && s.timezone !== "UTC" ? s.timezone : null].filter(Boolean).join(" ");
    const [kind, word] = last ? LAST[last[1]] || ["none", last[1]] : ["none", "no run yet"];
    return [{ "data-key": s.name }, [h("b", null, h("a", { href: `?schedule=${encodeURIComponent(s.name)}`, "data-schedule": s.name }, s.name)), h("span.dim.mono.w1.cron", null, cron), h("span.sub.dim.mono", null, cron)],
      [state(kind, last && last[1] === "succeeded" ? `done in ${dur(last[2])}` : word), last ? dim(" · ", agoOf(last[0]), " ago") : null, dead ? [" ", h("span.tag", null, `${dead} dead`)] : null, s.ordered ? [" ", h("span.tag", null, `${s.ordered} ordered`)] : null],
      spark(s), s.next ? ["in ", h("span", { "data-in": s.next })] : "–", link(s.role), button("Run now…", { "data-run": s.name, disabled: off() }, "quiet")];
  });
  card("schedules", "Schedules", count(part.list.length), table("schedules", ["Schedule", "Last run", "w1|Last 20", "num nw|Next", "w1|Role", "w1 num|Orders"], rows));
  $("#schedules").classList.toggle("wide", !data.tx || !data.tx.length);
}
function spark(schedule) {
  // A run that goes on has no length yet.
  const took = (run) => run[2] ?? Math.max(0, now() - run[0]);
  const runs = schedule.runs, top = Math.max(1, ...runs.map(took));
  const bad = (run) => ["failed", "interrupted", "missed"].includes(run[1]);
  const n = runs.filter(bad).length;
  return h("svg.spark", { width: 119, height: 20, role: "img", "aria-label": `Last ${plural(runs.length, "run")}: ${n} failed, interrupted or missed` }, runs.map((run, i) => {
    const height = Math.max(3, Math.round((took(run) / top) * 18)), x = i * 6;
    return bad(run) ? h("path.s-crit", { d: `M${x + .5} 1v18.5h3V1zM${x + .5} 19.5l3-18` }) : h("path.f-ghost", { d: `M${x} 20v-${height}h4v${height}z` });
  }));
}

export function transactions() {
  const list = data.tx;
  $("#tx").hidden = !list || !list.length;
  if (!list || !list.length) return;
  const body = list.map((account) => {
    const leader = data.roles.get(account.role);
    return [h("div.split.dim", null, h("span.mono", { title: account.account }, `${account.account.slice(0, 8)}…${account.account.slice(-4)}`),
      h("span", null, h("b", null, count(account.open)), " open"), h("span", { class: account.stuck ? "warn" : "" }, h("b", null, count(account.stuck)), " stuck"),
      h("span", null, "next nonce ", h("b", null, String(account.next))), leader && leads(leader) ? chip(leader.leader) : state("crit", "no leader")),
    account.oldest.length || account.ends.length ? table("tx", ["mono|Nonce", "Request", "Status", "num w1|Attempt", "num|Age"], [
      ...account.oldest.map(([nonce, request, status, at, attempt]) => [null, String(nonce), request, now() - at > 2 * MINUTE && !["in_block", "finalized", "finality_timeout"].includes(status) ? state("warn", `stuck, ${status}`) : status, String(attempt), since(at)]),
      ...account.ends.map(([nonce, request, status, at, noop]) => [{ class: "dim" }, String(nonce), request, state(status === "finalized" && !noop ? "ok" : "warn", noop ? "no-op" : status), "", [agoOf(at), " ago"]])]) : h("div.calm", null, dim("No transaction yet."))];
  });
  card("tx", "Transactions", plural(list.length, "account"), body.flat());
}

/* ---- everything, in order ---- */

const CATEGORIES = [["all", "All"], ["election", "Elections"], ["order", "Orders"], ["health", "Health"], ["schedule", "Schedules"], ["alert", "Alerts"]];
const BAD = new Set(["lost", "silent", "dead letter", "late", "interrupted", "failed"]);
const HEALTH = new Set(["late", "well", "recovered", "unhealthy", "healthy"]);
function feed() {
  const list = [];
  for (const role of data.roles.values()) {
    const terms = termsOf(role);
    terms.forEach((term, i) => {
      const before = terms[i - 1];
      const gap = before ? `${endedInOutage(before) ? "at least " : ""}${dur(term.from - before.until)} without a leader, after ${who(before.member)}` : "";
      list.push({ key: `a${role.name} ${term.epoch}`, at: term.from, kind: "acquired", category: "election", role: role.name, member: term.member, epoch: term.epoch, detail: gap });
      if (term.until !== null) list.push({ key: `e${role.name} ${term.epoch}`, at: term.until, kind: asked(term) ? "released" : "lost", category: "election", role: role.name, member: term.member, epoch: term.epoch, detail: asked(term) ? "as asked" : `${term.how || "ended"}, without a release` });
    });
  }
  for (const [id, at, kind, role, member, epoch, detail] of data.events.values()) {
    const category = HEALTH.has(kind) ? "health" : kind.startsWith("alert") ? "alert" : "order";
    list.push({ key: `o${id}`, at, kind: kind.replaceAll("_", " "), category, role, member, epoch, detail });
  }
  for (const [schedule, slot_, state_, member, epoch, ended, attempts] of (data.schedules || { ended: [] }).ended) {
    list.push({ key: `s${schedule} ${slot_} ${attempts}`, at: ended, kind: ["failed", "interrupted"].includes(state_) ? "dead letter" : state_, category: "schedule", role: null, member, epoch, detail: `${schedule}, slot ${when(slot_)}` });
  }
  return list.sort((a, b) => b.at - a.at);
}
let known = null;
export function events() {
  const all = feed();
  const hit = (event) => (view.category === "all" || event.category === view.category)
    && (!view.query || text(event.role).toLowerCase().includes(view.query) || (event.member && who(event.member).toLowerCase().includes(view.query)) || text(event.detail).toLowerCase().includes(view.query));
  const list = all.filter(hit).slice(0, 100);
  const rows = list.map((event) => h("li", { class: known && !known.has(event.key) ? "new" : "", "data-key": event.key },
    h("span.dim", { title: iso(event.at) }, now() - event.at > 12 * HOUR ? `${day(event.at)} ${hm(event.at)}` : iso(event.at).slice(11, 23)),
    h("span", { class: BAD.has(event.kind) ? "crit" : "" }, event.kind),
    h("span.d", null, event.role ? [link(event.role), " "] : null, event.member ? [chip(event.member), " "] : null, dim([event.epoch ? `epoch ${event.epoch}` : null, event.detail].filter(Boolean).join(" · ")))));
  known = new Set(all.map((event) => event.key));
  card("events", "Events", `${count(list.length)} of ${count(all.length)}`, h("ol", { id: "feed", tabindex: "0", "aria-labelledby": "h-events" }, rows.length ? rows : h("li.dim", null, "None")),
    h("div.seg", { role: "group", "aria-label": "Kind of event" }, segments("category", CATEGORIES, view.category)));
}

/* ---- the outage ---- */

export function banner() {
  const out = data.outage, box = $("#banner");
  document.body.classList.toggle("outage", !!out && data.loaded);
  // A page that never showed anything has only its form.
  box.hidden = !out || (!!out.signin && !data.loaded);
  if (box.hidden) return;
  const words = out.why[0].toUpperCase() + out.why.slice(1);
  fill(box, [sign("crit"), h("p", null, h("b", null, out.signin ? "Your session has ended." : data.loaded ? ["Away for ", h("span", { id: "away" }, dur(clock() - now())), ": ", `${out.why}.`] : `${words}.`),
    data.loaded ? ` Everything below is as of ${hms(now())} UTC. ` : " ", out.signin ? "Sign in to see what is true now." : "The page asks again by itself and recovers; orders are off until then.")]);
}
