// How things look: members' names, colours and patterns, signs, and the theme.

import { $, h } from "/dom.js";
import { data } from "/store.js";
import { ago, dur, iso, now } from "/time.js";

const SLOTS = 8;
const IDENTITY = /^(.+)-(\d+)-([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
let short = new Map(), slots = new Map();

/** Names anew: the place of a member, without a scope that all share, and with its pid where two share a place. */
export function nameMembers() {
  const parts = new Map([...data.names].map((name) => [name, IDENTITY.exec(name)]));
  const places = [...parts.values()].filter(Boolean).map((found) => found[1]);
  const scopes = new Set(places.map((place) => place.split("-")[0]));
  const strip = scopes.size === 1 && places.every((place) => place.includes("-"));
  const bare = (place) => (strip ? place.slice(place.indexOf("-") + 1) : place);
  const alive = new Map();
  for (const name of data.members.keys()) {
    const found = parts.get(name);
    if (found) alive.set(found[1], (alive.get(found[1]) || 0) + 1);
  }
  short = new Map();
  for (const [name, found] of parts) {
    if (!found) short.set(name, name);
    else short.set(name, alive.get(found[1]) > 1 ? `${bare(found[1])}-${found[2]}` : bare(found[1]));
  }
  for (const name of new Set([...short.values()].sort())) slotOf(name);
}
export const who = (name) => (name ? short.get(name) || name : "no member");

/** A member keeps its colour: the slot of its name, or the next free one. */
function slotOf(name) {
  if (slots.has(name)) return slots.get(name);
  let hash = 0;
  for (const c of name) hash = (Math.imul(hash, 31) + c.codePointAt(0)) | 0;
  const taken = new Set(slots.values());
  // The two that are hardest to tell apart from the rest come last.
  const few = taken.size < SLOTS - 2 ? SLOTS - 2 : SLOTS;
  let slot = Math.abs(hash) % few;
  for (let i = 0; i < few && taken.has(slot); i++) slot = (slot + 1) % few;
  slots.set(name, slot);
  return slot;
}
export const slot = (name) => slotOf(who(name));
export const letter = (name) => (who(name).match(/[a-z0-9]/i) || ["?"])[0].toUpperCase();

export const swatch = (name) => h(`i.sw.m${slot(name)}`, { "aria-hidden": "true" }, h("b", null, letter(name)));
export const chip = (name) => h("span.m", { title: name }, swatch(name), h("span", null, who(name)));

const SIGNS = {
  ok: () => [h("circle.f-ok", { cx: 6, cy: 6, r: 4 })],
  crit: () => [h("path.f-crit", { d: "M6 0l6 6-6 6-6-6z" }), h("path.f-card", { d: "M5.3 2.8h1.4v4H5.3zM5.3 7.8h1.4v1.4H5.3z" })],
  warn: () => [h("path.f-warn", { d: "M6 .5 12 11.5H0z" }), h("path.f-card", { d: "M5.4 4.3h1.2v3.4H5.4zM5.4 8.5h1.2v1.2H5.4z" })],
  paused: () => [h("path.f-dim", { d: "M2 1h3v10H2zM7 1h3v10H7z" })],
  none: () => [h("circle.s-dim", { cx: 6, cy: 6, r: 4 })],
};
export const sign = (kind) => h("svg.g", { viewBox: "0 0 12 12", "aria-hidden": "true" }, SIGNS[kind]());
export const state = (kind, text, cls) => h("span.state", { class: cls ?? (kind === "ok" ? "" : kind) }, sign(kind), h("span", null, text));
export const dim = (...children) => h("span.dim", null, ...children);

/** Times that go on by themselves. */
export const since = (t) => h("time", { "data-since": t, title: iso(t) }, dur(now() - t));
export const agoOf = (t) => h("time", { "data-ago": t, title: iso(t) }, ago(t));
export const heartbeat = (name) => h("span.hb", { "data-hb": name, "data-ticks": true }, h("i", null, h("b", { "data-ticks": true })), h("span"));

/* ---- colours for the canvas ---- */

const PATTERNS = [
  () => {},
  (g) => { g.fillRect(1, 1, 2, 2); g.fillRect(5, 5, 2, 2); },
  (g) => g.fillRect(0, 3, 8, 1),
  (g) => g.fillRect(3, 0, 1, 8),
  (g) => lines(g, -2, -2, 10, 10, 6, -2, 10, 2, -2, 6, 2, 10),
  (g) => { g.fillRect(0, 3, 8, 1); g.fillRect(3, 0, 1, 8); },
  (g) => lines(g, 0, 6, 4, 2, 4, 2, 8, 6),
  (g) => { g.fillRect(0, 0, 4, 4); g.fillRect(4, 4, 4, 4); },
];
export function lines(g, ...points) {
  g.beginPath();
  for (let i = 0; i < points.length; i += 4) {
    g.moveTo(points[i], points[i + 1]);
    g.lineTo(points[i + 2], points[i + 3]);
  }
  g.stroke();
}
export const ink = { tiles: [], hatch: null, fog: null, font: "sans-serif" };
const colours = new Map();
export function colour(name) {
  if (!colours.has(name)) {
    const probe = $("#tip");
    const before = probe.style.color;
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
    probe.style.color = before;
  }
  return colours.get(name);
}
function tile(draw, background) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 8;
  const g = canvas.getContext("2d");
  g.fillStyle = background;
  g.fillRect(0, 0, 8, 8);
  g.strokeStyle = g.fillStyle = "rgba(10, 14, 20, .17)";
  draw(g);
  return g.createPattern(canvas, "repeat");
}
function paint() {
  colours.clear();
  ink.font = getComputedStyle(document.body).fontFamily;
  ink.tiles = PATTERNS.map((pattern, i) => tile(pattern, colour(`m${i}`)));
  ink.hatch = tile((g) => {
    g.strokeStyle = colour("crit");
    g.lineWidth = 2;
    lines(g, -2, 10, 10, -2, -2, 2, 2, -2, 6, 10, 10, 6);
  }, colour("critbg"));
  ink.fog = tile((g) => {
    g.strokeStyle = colour("ghost");
    lines(g, 0, 8, 8, 0);
  }, colour("sunk"));
}

/* ---- the theme ---- */

const THEMES = ["auto", "light", "dark"];
let theme = new URLSearchParams(location.search).get("theme") || stored() || "auto";
function stored() {
  try {
    return localStorage.getItem("tenure-theme");
  } catch {
    return null;
  }
}
export function setTheme(redraw) {
  document.documentElement.className = theme === "auto" ? "" : theme;
  $("#theme").textContent = theme[0].toUpperCase() + theme.slice(1);
  $("#theme").setAttribute("aria-label", `Colours: ${theme}`);
  paint();
  redraw();
}
export function watchTheme(redraw) {
  if (!THEMES.includes(theme)) theme = "auto";
  $("#theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % 3];
    try {
      localStorage.setItem("tenure-theme", theme);
    } catch {
      // A browser that keeps nothing still shows it.
    }
    setTheme(redraw);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(redraw));
  setTheme(redraw);
}
