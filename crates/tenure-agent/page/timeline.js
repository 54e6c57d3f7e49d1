// Who led when: one canvas, of which only the visible lanes are drawn. Red means "without a leader" and nothing
// else; a hand-over as asked is a thin notch.

import { $, fill, h, say, setUrl } from "/dom.js";
import { DAY, HOUR, MINUTE, SECOND, clock, count, day, dur, hm, hms, iso, now, when } from "/time.js";
import { WINDOWS, asked, data, endedInOutage, families, leads, load, stateOf, termsOf, vacantSince } from "/store.js";
import { chip, colour, dim, ink, letter, lines, slot, who } from "/look.js";
import { matches, ranked, segments, view } from "/cards.js";

const ZOOM = [["5m", "5 m"], ["1h", "1 h"], ["24h", "24 h"], ["7d", "7 d"]];
const STEPS = [15 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY];
const HOW = { released: "released as asked", abandoned: "abandoned, without a release", replaced: "its session ended without a release", forced: "by force, by an operator" };
const params = new URLSearchParams(location.search);
const box = $("#tl"), canvas = $("#tl canvas"), g = canvas.getContext("2d"), tip = $("#tip");
const start = ZOOM.findIndex(([key]) => key === params.get("zoom"));
export const tl = { zoom: start < 0 ? 1 : start, end: null, pin: Date.parse(params.get("at")) || null, x: null, y: null, rows: [], hits: [], row: -1, piece: 0, mode: "all", open: null };
let geometry = {}, queued = false, show = () => {};

const length = () => WINDOWS[ZOOM[tl.zoom][0]];
function span() {
  const end = tl.end || clock() + length() * .003;
  return [end - length(), end];
}

export function lanes() {
  const [from, to] = span(), all = ranked().filter(matches), within = (t) => t > from && t < to;
  const by = {
    all,
    changed: all.filter((role) => within(role.since ?? 0) || role.terms.some((term) => within(term.until) || within(term.from))),
    vacant: all.filter((role) => !leads(role)),
  };
  tl.rows = [...by[tl.mode]];
  if (tl.rows.length > 40) {
    // What changed last comes first: no person reads a thousand lanes. Shards are on their map, too, and come last.
    const rank = { vacant: 0, flapping: 1, paused: 2, led: 3 }, { inSet } = families();
    const key = new Map(tl.rows.map((role) => [role, (rank[stateOf(role)] + (leads(role) && inSet.has(role) ? 1 : 0)) * 1e15 - (role.since || 0)]));
    tl.rows.sort((a, b) => key.get(a) - key.get(b));
  }
  fill($("#lanes"), segments("lanes", Object.entries({ all: "All", changed: "Changed", vacant: "Without leader" }).map(([key, label]) => [key, `${label} ${count(by[key].length)}`]), tl.mode));
  fill($("#zoom"), segments("zoom", ZOOM, ZOOM[tl.zoom][0]));
  box.setAttribute("aria-label", `Who led when: ${count(tl.rows.length)} roles, ${ZOOM[tl.zoom][1]}`);
  size();
}

export function legend() {
  const key = (cls, label) => h("span", null, h("i.k", { class: cls }), label);
  const [a] = span();
  const names = new Map();
  for (const role of tl.rows.slice(0, 200)) for (const term of termsOf(role)) if (term.until === null || term.until > a) names.set(who(term.member), term.member);
  const members = [...names].sort(([x], [y]) => (x < y ? -1 : 1)).slice(0, 16).map(([, name]) => chip(name));
  fill($("#legend"), [...members, key("gap", "no leader, with its length"), key("hand", "hand-over as asked"), key("dense", "terms too short to draw: zoom in"),
    data.outage || data.completeSince > a || data.outages.some(([, to]) => to > a) ? key("fog", "not known") : null, h("span", null, "Click pins an instant")].filter(Boolean));
}

function size() {
  const w = box.clientWidth, phone = w < 640, LH = phone ? 44 : 28, AX = 28, n = tl.rows.length;
  const height = AX + LH * Math.min(Math.max(n, 1), n > 16 ? (phone ? 9.5 : 15.5) : 16) + 4, dpr = devicePixelRatio || 1;
  box.style.height = `${height + 1}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(w * dpr);
  canvas.height = Math.round(height * dpr);
  canvas.nextElementSibling.style.height = `${Math.max(0, AX + n * LH + 4 - height)}px`;
  geometry = { w, h: height, phone, LH, AX, dpr, L: phone ? 12 : 176, R: phone ? 16 : 164 };
  queue();
}
export function queue() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    draw();
  });
}

/* ---- drawing ---- */

const box_ = (c, x, y, w, h_, r) => {
  c.beginPath();
  c.roundRect(x, y, w, h_, Math.min(r, w / 2));
};
function pieces(role, a, b) {
  const terms = termsOf(role), found = [];
  let i = terms.length - 1;
  while (i > 0 && terms[i].from > a) i--;
  for (i = Math.max(0, i); i < terms.length && terms[i].from < b; i++) {
    const term = terms[i], next = terms[i + 1], end = term.until ?? now();
    found.push({ kind: "term", term, a: term.from, b: end, live: term.until === null });
    if (term.until !== null) found.push({ kind: next && asked(term) ? "hand" : "gap", term, next, a: term.until, b: next ? next.from : now(), live: !next });
  }
  return found.filter((piece) => piece.b > a && piece.a < b);
}

/** One lane: bars, gaps with their lengths, notches, and what is too short to draw. */
export function lane(c, role, y, h_, X, a, b, hits = []) {
  const lo = X(a), hi = X(b), labels = [];
  let dense = null, after = 0;
  const flush = () => {
    if (dense && dense.n > 1) {
      const w = Math.max(3, dense.e - dense.x);
      c.fillStyle = colour("ghost");
      c.fillRect(dense.x, y, w, h_);
      c.fillStyle = colour("crit");
      c.fillRect(dense.x, y - 3, w, 2);
      hits.push({ ...dense, x0: dense.x - 2, x1: dense.x + w + 2, kind: "dense", role });
    }
    dense = null;
  };
  c.font = `500 11px ${ink.font}`;
  c.textBaseline = "middle";
  for (const piece of pieces(role, a, b)) {
    const x0 = Math.max(lo, X(piece.a)), x1 = Math.min(hi, X(piece.b)), w = x1 - x0;
    if (piece.kind === "term") {
      if (w < 3 && !piece.live) {
        dense ||= { x: x0, n: 0, a: piece.a };
        Object.assign(dense, { n: dense.n + 1, e: x1, b: piece.b });
        continue;
      }
      flush();
      const name = piece.term.member, bar = Math.max(2, w - 1), index = slot(name);
      box_(c, x0, y, bar, h_, 3);
      c.fillStyle = ink.tiles[index];
      c.fill();
      hits.push({ x0, x1: x0 + bar, ...piece, role });
      const left = Math.max(x0, after) + 6, room = x0 + bar - left - 4, full = `${who(name)}  ${piece.term.epoch}`;
      const label = room >= c.measureText(full).width ? full : room >= c.measureText(who(name)).width ? who(name) : bar >= 12 && after <= x0 ? letter(name) : "";
      if (label) {
        const tw = c.measureText(label).width, tx = label.length === 1 ? x0 + (bar - tw) / 2 : left;
        c.fillStyle = colour(`m${index}`);
        c.fillRect(tx - 2, y + 2, tw + 4, h_ - 4);
        c.fillStyle = "#12151a";
        c.fillText(label, tx, y + h_ / 2 + .5);
      }
    } else if (piece.kind === "hand") {
      if (dense) continue;
      c.fillStyle = colour("text");
      c.fillRect(x0 - 1.5, y - 3, 2, h_ + 6);
      hits.push({ x0: x0 - 4, x1: x0 + 4, ...piece, role });
    } else {
      const nextWidth = piece.next ? X(piece.next.until ?? now()) - X(piece.next.from) : 99;
      if (!piece.live && nextWidth < 3 && dense) continue;
      flush();
      const gw = Math.max(w, 4), gx = x0 - .5, calm = piece.live && role.paused;
      c.fillStyle = calm ? colour("sunk") : ink.hatch;
      c.fillRect(gx, y - 2, gw, h_ + 4);
      c.strokeStyle = colour(calm ? "dim" : "crit");
      c.lineWidth = 1;
      c.strokeRect(gx + .5, y - 1.5, gw - 1, h_ + 3);
      hits.push({ x0: gx - 3, x1: gx + gw + 3, ...piece, role });
      const length_ = `${endedInOutage(piece.term) ? "≥ " : ""}${dur(piece.b - piece.a)}`;
      const label = calm ? `paused ${length_}` : length_, lw = c.measureText(label).width + 8;
      if (piece.live ? gw > lw + 4 : nextWidth > lw + 8) {
        const lx = piece.live ? gx + (gw - lw) / 2 : gx + gw + 2;
        labels.push([label, lx, lw, calm]);
        after = lx + lw;
      }
    }
  }
  flush();
  for (const [label, x, w, calm] of labels) {
    c.fillStyle = colour("card");
    box_(c, x, y + 1, w, h_ - 2, 3);
    c.fill();
    c.fillStyle = colour(calm ? "dim" : "crit");
    c.fillText(label, x + 4, y + h_ / 2 + .5);
  }
  const fog = (from, to) => {
    const x0 = Math.max(lo, X(from)), x1 = Math.min(hi, X(to));
    if (x1 <= x0) return;
    c.fillStyle = ink.fog;
    c.fillRect(x0, y - 2, Math.max(3, x1 - x0), h_ + 4);
  };
  if (data.outage) fog(now(), clock());
  for (const [from, to] of data.outages) fog(from, to);
  const known = termsOf(role)[0];
  // Older terms are not loaded; a term that was under way is known by its beginning.
  if (data.completeSince > a && !(known && known.from <= a)) fog(a, Math.min(data.completeSince, known ? known.from : b));
}

function put(label, x, y, name, weight = 400, right = false) {
  g.font = `${weight} 12px ${ink.font}`;
  g.fillStyle = colour(name);
  g.textAlign = right ? "right" : "left";
  g.fillText(label, x, y + .5);
  g.textAlign = "left";
}
function fit(label, width) {
  if (g.measureText(label).width <= width) return label;
  let cut = label;
  while (cut.length > 4 && g.measureText(`${cut}…`).width > width) cut = cut.slice(0, -2);
  return `${cut}…`;
}

function axis(a, b, X, right) {
  const { w, h: height, L, R, AX } = geometry;
  const step = STEPS.find((s) => (s / (b - a)) * (w - L - R) > (s < MINUTE ? 84 : 72)) || DAY;
  g.font = `11px ${ink.font}`;
  for (let t = Math.ceil(a / step) * step; t < b; t += step) {
    const x = Math.round(X(t)) + .5;
    g.strokeStyle = colour("line");
    g.lineWidth = 1;
    lines(g, x, AX - 6, x, height);
    const label = step >= DAY || (t % DAY === 0 && b - a > 2 * HOUR) ? day(t) : step < MINUTE ? hms(t) : hm(t);
    g.fillStyle = colour("dim");
    const tw = g.measureText(label).width;
    if (x + tw / 2 < right + 8 && x - tw / 2 > L - 12) g.fillText(label, x - tw / 2, 11);
  }
}

function mark(role, y, ty, cursor, right) {
  const { w, phone, L } = geometry, kind = stateOf(role);
  const points = { vacant: [0, -5, 5, 0, 0, 5, -5, 0], flapping: [0, -5, 5, 4, -5, 4] }[kind];
  g.fillStyle = colour({ vacant: "crit", flapping: "warn", led: "ok", paused: "dim" }[kind]);
  g.beginPath();
  if (points) for (let i = 0; i < points.length; i += 2) g.lineTo(20 + points[i], ty + points[i + 1]);
  else if (kind === "paused") {
    g.rect(16, ty - 4, 3, 8);
    g.rect(21, ty - 4, 3, 8);
  } else g.arc(20, ty, 3, 0, 7);
  g.fill();
  g.font = `500 12px ${ink.font}`;
  put(fit(role.name, phone ? w - 190 : L - 44), 32, ty, kind === "vacant" ? "crit" : "text", 500);
  const at = cursor ?? now(), terms = termsOf(role), term = terms.find((t) => t.from <= at && (t.until === null ? at <= now() : at < t.until));
  const last = term || terms.filter((t) => t.until !== null && t.until <= at).at(-1), x = phone ? right - 8 : right + 12;
  if (at > now() || (!last && at < data.completeSince) || data.outages.some(([from, to]) => from < at && at < to)) {
    put("not known", x, ty, "dim", 400, phone);
    return;
  }
  if (!last && cursor !== null) {
    put("not yet led", x, ty, "dim", 400, phone);
    return;
  }
  const paused = role.paused && cursor === null, name = term ? who(term.member) : paused ? "paused" : "no leader";
  const from = term ? term.from : cursor === null ? vacantSince(role) : last.until, length_ = from === null ? "" : dur(at - from);
  const ink_ = term ? "text" : paused ? "dim" : "crit", weight = term ? 400 : 600;
  if (phone) {
    put(`${name} ${length_}`, x, ty, ink_, weight, true);
    return;
  }
  if (term) {
    box_(g, x, ty - 6, 12, 12, 2);
    g.fillStyle = ink.tiles[slot(term.member)];
    g.fill();
  }
  g.font = `${weight} 12px ${ink.font}`;
  const room = w - 16 - g.measureText(length_).width - 8 - (x + (term ? 18 : 0));
  put(fit(name, room), x + (term ? 18 : 0), ty, ink_, weight);
  put(length_, w - 16, ty, term ? "dim" : ink_, weight, true);
}

export function draw() {
  const { w, h: height, phone, LH, AX, dpr, L, R } = geometry;
  if (!w) return;
  const [a, b] = span(), scale = (w - L - R) / (b - a), X = (t) => L + (t - a) * scale, right = w - R;
  g.setTransform(dpr, 0, 0, dpr, 0, 0);
  g.clearRect(0, 0, w, height);
  g.textBaseline = "middle";
  g.textAlign = "left";
  axis(a, b, X, right);
  const cursor = tl.x !== null && tl.x >= L && tl.x <= right ? a + (tl.x - L) / scale : tl.pin, top = box.scrollTop, hits = [];
  g.save();
  g.beginPath();
  g.rect(0, AX, w, height - AX);
  g.clip();
  const first = Math.max(0, Math.floor(top / LH)), end = Math.min(tl.rows.length, Math.ceil((top + height) / LH));
  for (let i = first; i < end; i++) {
    const role = tl.rows[i], y = AX + i * LH - top, by = phone ? y + 22 : y + 6, mine = [];
    if (role.name === tl.open || role.name === view.selected || (tl.y !== null && tl.y >= y && tl.y < y + LH && tl.y > AX)) {
      g.fillStyle = colour("hover");
      g.fillRect(0, y, w, LH);
    }
    g.strokeStyle = colour("line");
    g.lineWidth = 1;
    lines(g, 0, y + .5, w, y + .5);
    g.save();
    g.beginPath();
    g.rect(L - 4, y, right - L + 6, LH);
    g.clip();
    lane(g, role, by, 16, X, a, b, mine);
    g.restore();
    mine.forEach((hit) => hits.push({ ...hit, row: i, y0: y, y1: y + LH }));
    mark(role, y, phone ? y + 11 : y + LH / 2, cursor, right);
  }
  if (!tl.rows.length) put(data.roles.size ? "No role matches." : "No role yet.", 16, AX + 16, "dim");
  g.restore();
  tl.hits = hits;
  g.font = `600 11px ${ink.font}`;
  g.fillStyle = colour("dim");
  if (!phone) {
    g.fillText("Role", 32, 11);
    g.fillText(cursor !== null ? `Led at ${hms(cursor)}` : data.outage ? "Led when last seen" : "Leads now, for", right + 12, 11);
  }
  if (!tl.end) {
    const x = Math.round(X(clock())) + .5;
    g.strokeStyle = colour("accent");
    g.lineWidth = 1;
    lines(g, x, 18, x, height);
    g.fillStyle = colour("accent");
    box_(g, x - 2.5, 18, 5, 8, 2);
    g.fill();
  }
  if (cursor !== null && cursor >= a && cursor <= b) pointer(cursor, X, b - a);
  const far = clock() - a > 20 * HOUR, range = `${far ? `${day(a)} ` : ""}${hm(a)} – ${far ? `${day(b)} ` : ""}${hm(b)} UTC`;
  if ($("#range").textContent !== range) $("#range").textContent = range;
  $("#tolive").setAttribute("aria-pressed", String(!tl.end));
}
function pointer(cursor, X, length_) {
  const { w, h: height } = geometry, pinned = tl.pin !== null && tl.x === null;
  const x = Math.round(X(cursor)) + .5, label = `${length_ > 2 * DAY ? `${day(cursor)} ` : ""}${hms(cursor)}${pinned ? "  pinned" : ""}`;
  g.font = `600 11px ${ink.font}`;
  const tw = g.measureText(label).width + 12, lx = Math.min(Math.max(x - tw / 2, 4), w - tw - 4);
  g.strokeStyle = colour("text");
  g.setLineDash(pinned ? [] : [3, 3]);
  lines(g, x, 20, x, height);
  g.setLineDash([]);
  box_(g, lx, 2, tw, 18, 4);
  g.fillStyle = colour("text");
  g.fill();
  g.fillStyle = colour("card");
  g.fillText(label, lx + 6, 11.5);
}

/* ---- what lies under the pointer ---- */

function describe(piece) {
  const row = (key, value) => [h("dt", null, key), h("dd", null, value)];
  if (piece.kind === "dense") return [h("b", null, piece.role.name), h("p", null, `${piece.n} short terms, ${when(piece.a)} to ${when(piece.b)}. Zoom in.`)];
  const { term, next } = piece;
  if (piece.kind === "term") {
    return [chip(term.member), " ", dim(`led ${piece.role.name}`), h("dl", null, row("Epoch", String(term.epoch)), row("From", when(term.from)), row("Until", term.until ? when(term.until) : "now"),
      row("Led for", dur((term.until ?? now()) - term.from)), row("Gate", term.waited > 50 ? `opened ${dur(term.waited)} after the claim: waited out the lease` : "open with the claim"), term.until ? row("Ended", HOW[term.how] || term.how) : [])];
  }
  const title = piece.kind === "hand" ? "Hand-over" : piece.live ? (piece.role.paused ? "Paused" : "No leader") : "Failover";
  return [h("b", { class: piece.kind === "gap" ? "crit" : "" }, `${title}: ${endedInOutage(term) ? "≥ " : ""}${dur(piece.b - piece.a)}`), " ", dim(piece.role.name), h("dl", null,
    row("From", `${who(term.member)}, epoch ${term.epoch}`), row("To", next ? `${who(next.member)}, epoch ${next.epoch}` : "no member yet"), row("At", when(piece.a)), row("Why", HOW[term.how] || "ended"))];
}
function showTip(piece, x, y) {
  tip.hidden = !piece;
  if (!piece) return;
  tip.replaceChildren(...describe(piece).flat());
  const w = tip.offsetWidth, height = tip.offsetHeight;
  tip.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - w - 8))}px`;
  tip.style.top = `${y + 20 + height > innerHeight ? Math.max(8, y - height - 12) : y + 20}px`;
}
function under(x, y) {
  const found = tl.hits.filter((p) => x >= p.x0 && x <= p.x1 && y >= p.y0 && y < p.y1 && y > geometry.AX);
  return found.find((p) => p.kind !== "term") || found[0];
}
const roleAt = (y) => (y > geometry.AX ? tl.rows[Math.floor((y - geometry.AX + box.scrollTop) / geometry.LH)] : null);

/* ---- moving ---- */

export function zoom(index) {
  const [from, to] = span(), past = tl.end !== null;
  tl.zoom = Math.max(0, Math.min(ZOOM.length - 1, index));
  // The pinned instant stays in the middle; so does what is looked at in the past.
  if (tl.pin !== null && tl.pin >= from && tl.pin <= to) centre(tl.pin);
  else if (past) centre((from + to) / 2);
  const [key, label] = ZOOM[tl.zoom];
  setUrl("zoom", key === "1h" ? null : key);
  reach();
  lanes();
  legend();
  say(`Zoom ${label}`);
}
function centre(at) {
  const end = at + length() / 2;
  tl.end = end >= clock() ? null : end;
}
export const zoomTo = (key) => zoom(ZOOM.findIndex(([known]) => known === key));
export function pan(direction) {
  const end = (tl.end || clock()) + direction * length() * .5;
  tl.end = end >= clock() ? null : Math.max(end, clock() - WINDOWS["7d"] + length() / 4);
  reach();
  lanes();
}
export function live() {
  tl.end = null;
  lanes();
}
/** Loads a longer window if what is looked at is older than what was loaded. */
function reach() {
  const wanted = clock() - span()[0];
  const key = Object.keys(WINDOWS).find((name) => WINDOWS[name] * 1.01 >= wanted) || "7d";
  if (WINDOWS[key] > WINDOWS[data.window]) load(key);
}

export function listen(open) {
  show = open;
  // A link to a moment: that moment in the middle, and terms of a window that reaches it. The database's time is not
  // known yet.
  let back = length();
  if (tl.pin !== null) {
    const ago = Date.now() - tl.pin, index = ZOOM.findIndex(([key]) => ago < WINDOWS[key] * .9);
    if (!params.get("zoom")) tl.zoom = index < 0 ? 3 : index;
    if (ago > length() / 2) tl.end = tl.pin + length() / 2;
    back = Math.max(length(), ago + length() / 2);
  }
  data.window = Object.keys(WINDOWS).find((key) => WINDOWS[key] >= Math.max(back, WINDOWS["1h"])) || "7d";
  canvas.addEventListener("pointermove", (event) => {
    [tl.x, tl.y] = [event.offsetX, event.offsetY];
    canvas.style.cursor = tl.x < geometry.L || tl.x > geometry.w - geometry.R ? "pointer" : "crosshair";
    queue();
    showTip(under(tl.x, tl.y), event.clientX, event.clientY);
  });
  const leave = () => {
    tl.x = tl.y = null;
    tip.hidden = true;
    queue();
  };
  canvas.addEventListener("pointerleave", leave);
  box.addEventListener("blur", leave);
  box.addEventListener("scroll", () => {
    tip.hidden = true;
    queue();
  });
  canvas.addEventListener("click", (event) => {
    const { L, R, w, phone, AX, LH } = geometry, role = roleAt(event.offsetY);
    if (event.offsetX < L || event.offsetX > w - R || (phone && (event.offsetY - AX + box.scrollTop) % LH < 20)) {
      if (role) show(role.name);
      return;
    }
    const [a, b] = span(), t = a + ((event.offsetX - L) / (w - L - R)) * (b - a);
    tl.pin = tl.pin !== null && Math.abs(tl.pin - t) < (b - a) / 100 ? null : t;
    setUrl("at", tl.pin && iso(tl.pin));
    queue();
  });
  box.addEventListener("keydown", keys);
  $("#back").addEventListener("click", () => pan(-1));
  $("#fwd").addEventListener("click", () => pan(1));
  $("#tolive").addEventListener("click", live);
  new ResizeObserver(size).observe(box);
}

function keys(event) {
  const key = event.key;
  if (key === "Enter" && tl.rows[tl.row]) {
    show(tl.rows[tl.row].name);
    event.preventDefault();
  } else if (key === "+" || key === "=") zoom(tl.zoom - 1);
  else if (key === "-") zoom(tl.zoom + 1);
  if (!key.startsWith("Arrow")) return;
  event.preventDefault();
  if (key === "ArrowDown" || key === "ArrowUp") {
    tl.row = Math.max(0, Math.min(tl.rows.length - 1, tl.row + (key === "ArrowDown" ? 1 : -1)));
    tl.piece = Infinity;
  }
  if (tl.row < 0) tl.row = 0;
  const role = tl.rows[tl.row];
  if (!role) return;
  const { LH, AX, h: height, L, w, R } = geometry, y = tl.row * LH;
  if (y < box.scrollTop) box.scrollTop = y;
  if (y + LH * 2 > box.scrollTop + height - AX) box.scrollTop = y + LH * 2 - height + AX;
  draw();
  const mine = tl.hits.filter((hit) => hit.role === role);
  const step = key === "ArrowLeft" ? -1 : key === "ArrowRight" ? 1 : 0;
  tl.piece = Math.max(0, Math.min(mine.length - 1, Math.min(tl.piece, mine.length - 1) + step));
  const piece = mine[tl.piece];
  if (!piece) {
    say(`${role.name}: nothing in this window`);
    return;
  }
  const place = canvas.getBoundingClientRect(), edge = Math.min(piece.x1, w - R) - 4;
  tl.x = Math.max(L, (Math.max(piece.x0, L) + edge) / 2);
  tl.y = piece.y0 + 8;
  queue();
  showTip(piece, place.left + tl.x, place.top + piece.y1 - 8);
  say(`${role.name}: ${tip.innerText.replace(/\s+/g, " ")}`);
}
