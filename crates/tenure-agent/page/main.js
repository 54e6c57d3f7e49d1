// Puts the parts together: draws what changed, lets time pass, and listens to people.

import { $, $$, h, fill, say } from "/dom.js";
import { ago, clock, dur, hms, now } from "/time.js";
import { data, leads, onChange, silent, start } from "/store.js";
import { nameMembers, sign, watchTheme, who } from "/look.js";
import * as cards from "/cards.js";
import * as timeline from "/timeline.js";
import * as panel from "/panel.js";
import { account, onDone, orders, signIn } from "/orders.js";

const { view } = cards;

/* ---- drawing ---- */

const DRAW = [
  [["roles", "members", "alerts", "schedules", "tx", "events"], cards.verdict],
  [["roles", "members", "alerts", "schedules"], cards.needs],
  [["roles", "alerts", "schedules", "events"], cards.recent],
  [["roles"], timeline.lanes],
  [["roles"], timeline.legend],
  [["roles", "members"], cards.roles],
  [["roles", "members"], cards.members],
  [["roles"], cards.shards],
  [["schedules"], cards.schedules],
  [["tx", "roles"], cards.transactions],
  [["roles", "events", "schedules", "alerts"], cards.events],
  [["outage"], cards.banner],
  [["roles", "members", "outage"], panel.draw],
];
const dirty = new Set();
let queued = false;
function redraw(...what) {
  what.forEach((word) => dirty.add(word));
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    const all = dirty.has("all") || dirty.has("outage") || dirty.has("back");
    const due = DRAW.filter(([words]) => all || words.some((word) => dirty.has(word)));
    dirty.clear();
    nameMembers();
    due.forEach(([, draw]) => draw());
    if (all) nav();
    tick();
  });
}
function nav() {
  const there = [["timeline", "Timeline"], ["roles", "Roles"], ["members", "Members"], ["shards", "Shards"], ["schedules", "Schedules"], ["tx", "Transactions"], ["events", "Events"]];
  fill($("#nav"), there.filter(([id]) => !$(`#${id}`).hidden).map(([id, label]) => h("a", { href: `#${id}` }, label)));
}
onChange((what) => {
  if (what.has("signin")) signIn("This page needs a token.");
  account();
  if (what.has("back")) say("What is shown is live again.");
  if (what.has("outage")) say(`What is shown stands still: ${data.outage.why}.`);
  (what.told || []).slice(0, 3).forEach(([old, role]) => {
    if (leads(role)) say(`${who(role.leader)} leads ${role.name}, epoch ${role.epoch}`);
    else if (leads(old)) say(`${role.name} has no leader`);
  });
  if ((what.told || []).some(([, role]) => role.name === panel.opened())) panel.more();
  panel.follow();
  redraw(...what);
});
onDone(() => panel.more());

/* ---- time passes ---- */

function set(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
function tick() {
  for (const element of $$("[data-since]")) set(element, dur(now() - element.dataset.since));
  for (const element of $$("[data-ago]")) set(element, ago(+element.dataset.ago));
  for (const element of $$("[data-in]")) set(element, element.dataset.in > now() ? dur(element.dataset.in - now()) : "a moment");
  for (const element of $$("[data-hb]")) {
    const member = data.members.get(element.dataset.hb), bar = element.firstChild.firstChild;
    const age = member ? Math.max(0, now() - member.seen) : Infinity, lease = member ? member.lease : 1, part = Math.min(1, age / lease);
    element.className = `hb${age > lease ? " gone" : part > .6 ? " late" : ""}`;
    // A new heartbeat jumps back at once.
    bar.style.transition = part < (bar.part || 0) ? "none" : "";
    bar.part = part;
    bar.style.transform = `scaleX(${part.toFixed(3)})`;
    set(element.lastChild, member ? (age > lease ? dur(age) : `${(age / 1000).toFixed(1)} s`) : "gone");
  }
  const away = $("#away");
  if (away) set(away, dur(clock() - now()));
  if (data.loaded) {
    const words = data.outage ? `Shown: as of ${hms(now())}` : `Live ${hms(now())} UTC`;
    const live = $("#live");
    if (live.dataset.words !== words) {
      live.dataset.words = words;
      fill(live, [sign(data.outage ? "crit" : "ok"), h("span", null, data.outage ? "As of " : "Live ", h("span.t", null, `${hms(now())} UTC`))]);
    }
  }
}
let late = "";
setInterval(() => {
  if (document.hidden || !data.loaded) return;
  tick();
  timeline.queue();
  // A member that falls silent sends no message: it is noticed here.
  const quiet = [...data.members.keys()].filter(silent).join();
  if (quiet !== late) {
    late = quiet;
    redraw("members", "roles");
  }
}, 250);

/* ---- people ---- */

const byName = (name) => data.roles.get(name);
document.addEventListener("click", (event) => {
  const at = event.target.closest("[data-order],[data-role],[data-open],[data-schedule],[data-close],[data-dismiss],[data-page],[data-category],[data-lanes],[data-zoom],[data-again],[data-run],[data-needs],tr[data-row]");
  if (!at || at.disabled || at.closest("dialog")) return;
  const d = at.dataset, plain = !(event.metaKey || event.ctrlKey || event.shiftKey);
  if (d.order) {
    const role = byName(d.for), inPanel = !!at.closest("#panel");
    if (role) orders[d.order](role, inPanel ? panel.chosen() : null);
  } else if (d.role || d.schedule) {
    if (!plain) return;
    event.preventDefault();
    panel.show(d.role ? "role" : "schedule", d.role || d.schedule);
  } else if (d.open) panel.show("role", d.open);
  else if ("close" in d) panel.hide();
  else if ("dismiss" in d) $("#done").hidden = true;
  else if (d.page) {
    view.page += +d.page;
    redraw("roles");
    say(`Page ${view.page + 1}`);
  } else if (d.category) {
    view.category = d.category;
    redraw("events");
  } else if (d.lanes) {
    timeline.tl.mode = d.lanes;
    $("#tl").scrollTop = 0;
    timeline.lanes();
    timeline.legend();
  } else if (d.needs) {
    view.all.add(d.needs);
    redraw("alerts");
  } else if (d.zoom) timeline.zoomTo(d.zoom);
  else if (d.again) {
    const letter = at.closest("#panel") ? panel.letter(d.slot) : data.schedules.dead.find((x) => x.schedule === d.again && x.at === d.slot);
    if (letter) orders.again(letter);
  } else if (d.run) {
    const schedule = data.schedules.list.find((s) => s.name === d.run);
    if (schedule) orders.run(schedule);
  } else if (d.row) {
    view.selected = d.row;
    panel.show("role", d.row);
    redraw("roles");
  }
});
$("#q").addEventListener("input", (event) => {
  view.query = event.target.value.trim().toLowerCase();
  view.page = 0;
  $("#tl").scrollTop = 0;
  redraw("roles", "events", "schedules");
});
$("#helpb").addEventListener("click", () => $("#help").showModal());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  const typing = /INPUT|SELECT/.test(event.target.tagName) && event.target.type !== "radio", key = event.key;
  if (key === "Escape") {
    if (typing && view.query) {
      event.target.value = "";
      event.target.dispatchEvent(new Event("input"));
    } else if (panel.opened()) panel.hide();
    else if (typing) event.target.blur();
    return;
  }
  const cell = event.target.closest(".map li");
  if (cell && key.startsWith("Arrow")) {
    // One stop for the tabulator, and arrows between the places of a map.
    event.preventDefault();
    const cells = [...cell.parentElement.children], here = cells.indexOf(cell);
    const wide = Math.max(1, cells.filter((other) => other.offsetTop === cells[0].offsetTop).length);
    const to = cells[here + { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide }[key]];
    if (to) $("a", to).focus();
    return;
  }
  if (typing) {
    if (key === "Enter") {
      // What was typed a moment ago may not be drawn yet.
      cards.roles();
      if (!view.shown[0]) return;
      select(view.shown[0].name);
      event.preventDefault();
    }
    return;
  }
  if (key === "/") {
    event.preventDefault();
    $("#q").focus();
    $("#q").select();
  } else if (key === "?") $("#help").showModal();
  else if (key === "j" || key === "k") {
    const place = view.shown.findIndex((role) => role.name === view.selected);
    const next = view.shown[Math.max(0, Math.min(view.shown.length - 1, place < 0 ? 0 : place + (key === "j" ? 1 : -1)))];
    if (!next) return;
    if (panel.opened()) panel.show("role", next.name, { focus: false });
    select(next.name);
  } else if (/^[1-4]$/.test(key)) timeline.zoom(key - 1);
  else if (key === "[") timeline.pan(-1);
  else if (key === "]") timeline.pan(1);
  else if (key === "l") timeline.live();
});
/** Marks a row, and gives its link the focus so that Enter opens it. */
function select(name) {
  view.selected = name;
  cards.roles();
  tick();
  timeline.queue();
  const row = $$("#roles tr[data-row]").find((tr) => tr.dataset.row === name);
  if (!row || panel.opened()) return;
  $("a", row).focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}

/* ---- go ---- */

watchTheme(() => data.loaded && redraw("all"));
timeline.listen((name) => panel.show("role", name));
cards.verdict();
const wanted = new URLSearchParams(location.search);
start();
for (const kind of ["role", "schedule"]) if (wanted.get(kind)) panel.show(kind, wanted.get(kind), { focus: false });
