// Small tools for the document. Text is always text: nothing here parses HTML, so no name of a role can become
// a tag.

export const $ = (selector, root = document) => root.querySelector(selector);
export const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const SVG = "http://www.w3.org/2000/svg";
const SHAPES = new Set(["svg", "path", "circle"]);

/** An element: h("p.dim", {title: "…"}, "text", child, …). Nothing is made of null and false. */
export function h(kind, attributes, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = SHAPES.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") {
      const all = [...classes, value].filter(Boolean).join(" ");
      if (all) element.setAttribute("class", all);
    } else if (name === "style") {
      // By properties: the content security policy allows no style attribute.
      for (const [property, setting] of Object.entries(value)) element.style[property] = setting;
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Makes `old` what `fresh` is, and changes only what differs: focus, scroll and selection stay. */
export function morph(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || keyOf(old) !== keyOf(fresh)) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "style" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  // What ticks by itself keeps its style.
  if (!old.dataset || !("ticks" in old.dataset)) {
    if (old.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  }
  fill(old, [...fresh.childNodes]);
}

/** Gives `parent` these children, keeping the ones that stay the same. */
export function fill(parent, children) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
  let at = parent.firstChild;
  for (const child of children) {
    const same = keyOf(child) && keyed.get(keyOf(child));
    if (same && same !== at) parent.insertBefore(same, at);
    if (same) {
      if (same === at) at = at.nextSibling;
      morph(same, child);
    } else if (at && !keyOf(at)) {
      const next = at.nextSibling;
      morph(at, child);
      at = next;
    } else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}
const keyOf = (node) => (node.dataset && node.dataset.key) || "";

/** Says something to people who listen instead of look. */
export function say(text) {
  $("#say").textContent = text;
}

/** Puts a word of the page's state into its address, so that a link leads to the same view. */
export function setUrl(name, value) {
  const url = new URL(location);
  if (value) url.searchParams.set(name, value);
  else url.searchParams.delete(name);
  history.replaceState(null, "", url);
}
