// The panel of one role, or of one schedule: what it did, what may be ordered, and its history as a table.

import { $, fill, h, setUrl } from "/dom.js";
import { HOUR, clock, dur, hm, hms, now, plural, when } from "/time.js";
import { ask, data, endedInOutage, leads, silent, stateOf, successors, vacantSince } from "/store.js";
import { agoOf, chip, colour, dim, heartbeat, ink, since, state, who } from "/look.js";
import { button, orderer, table } from "/cards.js";
import { lane, queue, tl } from "/timeline.js";

const panel = $("#panel");
const open = { role: null, schedule: null, more: null, back: null, chosen: "", runs: "" };
const STATES = { vacant: ["crit", "Vacant"], flapping: ["warn", "Flapping"], paused: ["paused", "Paused"], led: ["ok", "Led"] };

export const opened = () => open.role || open.schedule;
export async function show(kind, name, { focus = true } = {}) {
  if (!opened()) open.back = document.activeElement;
  Object.assign(open, { role: null, schedule: null, more: null, chosen: "", [kind]: name });
  setUrl("role", open.role);
  setUrl("schedule", open.schedule);
  tl.open = open.role;
  draw();
  if (focus) panel.focus();
  queue();
  await more();
}
export function hide() {
  Object.assign(open, { role: null, schedule: null, more: null });
  panel.hidden = true;
  setUrl("role", null);
  setUrl("schedule", null);
  tl.open = null;
  if (open.back && open.back.isConnected) open.back.focus();
  queue();
}
/** What is not in the picture: the lock, older terms, orders, output of runs. */
export async function more() {
  const name = opened(), path = open.role ? "role" : "runs";
  if (!name) return;
  try {
    const found = await ask(`/api/v1/${path}/${name.split("/").map(encodeURIComponent).join("/")}`);
    if (opened() === name) open.more = found;
  } catch (error) {
    if (opened() === name) open.more = { error: error.message };
  }
  draw();
}
export function draw() {
  panel.hidden = !opened();
  if (open.role) drawRole();
  else if (open.schedule) drawSchedule();
}
/** A schedule's runs came, began or ended since they were asked for. */
export function follow() {
  const schedule = open.schedule && data.schedules && data.schedules.list.find((s) => s.name === open.schedule);
  if (!schedule) return;
  const runs = JSON.stringify(schedule.runs);
  if (runs !== open.runs) {
    open.runs = runs;
    more();
  }
}
export const chosen = () => open.chosen || null;
/** The dead letter of a slot as the panel shows it. The picture may be older, and has only the newest letters. */
export const letter = (slot) => {
  const run = Array.isArray(open.more) && open.more.find((run) => run.at === slot);
  return run && { schedule: open.schedule, at: run.at, slot: Date.parse(run.at), state: run.state, attempts: run.attempts.length, output: (run.attempts.at(-1) || {}).output };
};
panel.addEventListener("change", (event) => {
  if (event.target.name === "to") open.chosen = event.target.value;
});

const facts = (entries) => h("dl.facts", null, entries.filter(Boolean).flatMap(([key, value]) => [h("dt", null, key), h("dd", null, value)]));
const head = (title, below) => h("div.ph", null, h("div", null, h("h2", { id: "h-panel" }, title), below), button(["Close ", h("kbd", null, "Esc")], { "data-close": true }, "quiet"));
const part = (title, ...body) => h("section", null, h("h3", null, title), ...body);

function drawRole() {
  const role = data.roles.get(open.role);
  if (!role) {
    fill(panel, [head(open.role, dim("There is no role of that name any more."))]);
    return;
  }
  const kind = stateOf(role), led = leads(role), vacant = vacantSince(role);
  const words = kind === "vacant" ? ["Vacant", vacant ? [" for ", since(vacant)] : null] : kind === "paused" ? "Paused: no leader until it is resumed" : [`${STATES[kind][1]}: ${who(role.leader)} leads for `, since(role.since)];
  fill(panel, [head(role.name, state(STATES[kind][0], words)), part("Last hour", h("canvas", { "aria-hidden": "true" })), part("Orders", ordersOf(role)), part("Details", details(role, led)), part("History", history(role)),
    open.more && open.more.orders && open.more.orders.length ? part("What operators ordered and members noted", h("ul", null, open.more.orders.map(([id, at, what, member, , detail]) => h("li", { "data-key": `o${id}` }, dim(when(at), " "), what.replaceAll("_", " "), member ? [" ", chip(member)] : null, dim(` by ${orderer(detail)}`))))) : null].filter(Boolean));
  mini(role);
}
function ordersOf(role) {
  if (data.outage) return dim(`No order can be given now: ${data.outage.why}.`);
  const give = (kind, label, cls) => button(label, { "data-order": kind, "data-for": role.name }, cls);
  if (role.paused) return [leads(role) ? h("p", null, "Its leader drains. ") : null, h("div.acts", null, give("resume", "Resume…", "pri"))];
  if (!leads(role)) {
    const waiting = role.candidates.map((c) => [chip(c.member), silent(c.member) ? " is silent. " : c.observer ? " observes. " : c.ready ? " may claim it. " : " is not ready. "]);
    return [h("p", null, "There is no leader to order. ", waiting), h("div.acts", null, give("pause", "Pause…"))];
  }
  const next = successors(role);
  const option = (value, label, note, disabled) => h("label", { "data-key": `to ${value}` },
    h("input", { type: "radio", name: "to", value, disabled: disabled || null, checked: open.chosen === value ? true : null }), h("span", null, label), dim(note));
  const others = role.candidates.filter((c) => c.member !== role.leader);
  return [h("fieldset", null, h("legend", null, "Successor"), option("", "Let Tenure choose", next[0] ? `${who(next[0].member)} is next` : "no candidate is ready"),
    others.slice(0, 30).map((c) => option(c.member, chip(c.member), silent(c.member) ? "silent" : c.observer ? "observer" : c.ready ? `ready, priority ${c.priority}` : "not ready", silent(c.member) || c.observer || !c.ready))),
  h("div.acts", null, give("step_down", "Step down…", "pri"), give("pause", "Pause…"))];
}
function details(role, led) {
  const found = open.more && !open.more.error ? open.more : null, host = data.members.get(role.leader);
  const lock = found && (found.lock_held_by.length ? found.lock_held_by.map((l) => `${l.leader ? "the leader’s seat" : l.program || "a session"} (pid ${l.pid})`).join(", ") : "free");
  return facts([["Epoch", String(role.epoch)], ["Leader", led ? [chip(role.leader), host ? dim(` on ${host.host}`) : null] : "none"], led ? ["Heartbeat", heartbeat(role.leader)] : null,
    ["Policy", `${role.policy}, lease ${dur(role.lease)}`], found ? ["Lock key", h("code", null, found.key)] : null, found ? ["Lock held by", lock] : null,
    ["Candidates", `${role.candidates.length}, ${successors(role).length} ready to succeed`], role.ordered ? ["Order", "a step-down waits to be carried out"] : null]);
}
function history(role) {
  if (!open.more) return dim("Asking…");
  if (open.more.error) return dim(`${open.more.error}.`);
  const terms = open.more.terms;
  return table("panel", ["num|Epoch", "Member", "From", "num|Led for", "num|Gap before", "w1|Ended"], terms.map(([epoch, member, claimed, acting, ended, how], i) => {
    const before = terms.slice(i + 1).find((t) => t[3] !== null), gap = before && before[4] && acting ? acting - before[4] : null;
    const atLeast = before && endedInOutage({ from: before[3], until: before[4], how: before[5] });
    return [{ "data-key": `t${epoch}` }, String(epoch), chip(member), when(acting || claimed), acting ? (ended ? dur(ended - acting) : since(acting)) : dim("never led"), gap === null ? "–" : h("span", { class: gap > 500 ? "crit" : "dim" }, atLeast ? "≥ " : "", dur(Math.max(0, gap))), ended ? how : "leads"];
  }));
}
function mini(role) {
  const canvas = $("canvas", panel), w = canvas.clientWidth, dpr = devicePixelRatio || 1;
  if (!w) return;
  canvas.width = w * dpr;
  canvas.height = 40 * dpr;
  const c = canvas.getContext("2d"), b = clock(), a = b - HOUR;
  c.scale(dpr, dpr);
  lane(c, role, 8, 16, (t) => ((t - a) / HOUR) * w, a, b);
  c.fillStyle = colour("dim");
  c.font = `11px ${ink.font}`;
  c.fillText(hm(a), 0, 34);
  c.textAlign = "right";
  c.fillText("now", w, 34);
}

function drawSchedule() {
  const schedule = data.schedules && data.schedules.list.find((s) => s.name === open.schedule);
  const runs = Array.isArray(open.more) ? open.more : null;
  const body = [head(open.schedule, schedule ? dim(`${schedule.cron}${schedule.timezone ? ` ${schedule.timezone}` : ""}, by the leader of ${schedule.role}`) : dim("There is no schedule of that name any more."))];
  if (schedule) {
    body.push(part("Orders", h("div.acts", null, button("Run now…", { "data-run": schedule.name, disabled: data.outage ? true : null }, "pri"))),
      part("Next", h("p", null, schedule.next ? [`${when(schedule.next)} UTC, in `, h("span", { "data-in": schedule.next })] : "not known")));
  }
  const rows = runs && runs.map((run) => {
    const at = Date.parse(run.at), dead = ["failed", "interrupted"].includes(run.state);
    return h("div", { "data-key": run.at }, h("p", null, state(run.state === "succeeded" ? "ok" : dead ? "crit" : "none", `${when(at)} ${run.state}`), dim(run.ordered_by ? ` ordered by ${run.ordered_by}` : "", run.missed ? `, ${plural(run.missed, "slot")} missed before it` : ""),
      dead ? [" ", button("Run again…", { "data-again": open.schedule, "data-slot": run.at, disabled: data.outage ? true : null }, "quiet")] : null),
    run.attempts.map((attempt) => [h("p.dim", null, `Attempt ${attempt.number} on `, chip(attempt.member), ` at ${hms(Date.parse(attempt.started_at))}`, attempt.ended_at ? `, ${attempt.how} in ${dur(Date.parse(attempt.ended_at) - Date.parse(attempt.started_at))}` : ", runs", attempt.code !== null && attempt.code !== undefined ? `, exit ${attempt.code}` : "", attempt.reason ? `: ${attempt.reason}` : ""),
      attempt.output ? h("pre", { tabindex: "0", "aria-label": `Output of attempt ${attempt.number}` }, attempt.output) : null]));
  });
  body.push(part("Latest runs", rows || dim(open.more && open.more.error ? `${open.more.error}.` : "Asking…")));
  fill(panel, body);
}
