// A real browser, and the few words that the tests below are written in.
//
// The program around it starts the database, the members and the page, and does what `order(…)` asks for: it
// reads our standard output.

import { createRequire } from "node:module";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const tools = fileURLToPath(new URL("../../../../.tools/page/", import.meta.url));
const require = createRequire(tools);
const { chromium } = require("playwright-core");
export const URL_ = process.env.TENURE_PAGE, SECURE = process.env.TENURE_SECURE;
export const TOKEN = process.env.TENURE_TOKEN, READER = process.env.TENURE_READER, SHOTS = process.env.TENURE_SHOTS;
const SOON = 30_000;
const programs = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome", "/Applications/Chromium.app/Contents/MacOS/Chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"];

/** Asks the program around us to do something to the group. */
export const order = (what) => console.log(`do ${what}`);

export function check(truth, words) {
  if (!truth) throw new Error(words);
}
export function same(found, wanted, words) {
  check(JSON.stringify(found) === JSON.stringify(wanted), `${words}: ${JSON.stringify(found)}, not ${JSON.stringify(wanted)}`);
}

export async function browser() {
  const executablePath = programs.find((path) => path && existsSync(path));
  check(executablePath, "there is no Chromium; scripts/setup.sh page installs it");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
}

/** A page whose every fault is a fault of the test: errors, refused policies, requests to elsewhere. */
export async function open(chrome, { url = URL_, path = "", width = 1600, height = 1000, dark = false, strange = false } = {}) {
  const context = await chrome.newContext({ viewport: { width, height }, colorScheme: dark ? "dark" : "light", reducedMotion: "reduce", ignoreHTTPSErrors: true });
  const page = await context.newPage();
  page.faults = [];
  // While the database or the server is away, the browser itself notes failed requests.
  page.on("console", (message) => {
    if (message.type() === "error" && !/Failed to load resource|ERR_/.test(message.text())) page.faults.push(message.text());
  });
  page.on("pageerror", (error) => page.faults.push(String(error.stack || error)));
  page.on("request", (request) => {
    if (new URL(request.url()).origin !== new URL(url).origin) page.faults.push(`asked for ${request.url()}`);
  });
  page.setDefaultTimeout(SOON);
  await page.goto(url + path);
  if (!strange) await page.waitForFunction(() => /\bled\b|No role/.test(document.querySelector("#verdict h1")?.textContent || ""));
  return page;
}
/** Waits for words in an element that is shown: the text of a hidden one can be read as well. */
export async function sees(page, selector, words) {
  await page.waitForFunction(([s, source, flags]) => [...document.querySelectorAll(s)].some((e) => e.getClientRects().length && new RegExp(source, flags).test(e.innerText)), [selector, words.source, words.flags], { timeout: SOON })
    .catch(async () => {
      const found = await page.locator(selector).allInnerTexts();
      throw new Error(`${selector} never said ${words}: ${JSON.stringify(found).slice(0, 600)}`);
    });
}
export async function shoot(page, name) {
  if (!SHOTS) return;
  mkdirSync(SHOTS, { recursive: true });
  await page.screenshot({ path: `${SHOTS}/${name}.png` });
}
/** In the long pass: axe, and a picture. */
export async function inspect(page, name, greyed = false) {
  if (!SHOTS) return;
  await axe(page, name, greyed);
  await shoot(page, name);
}
/** What axe finds that is serious. `greyed`: what is shown in an outage is grey on purpose, and its age is not. */
export async function axe(page, where, greyed = false) {
  await page.evaluate(readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const violations = await page.evaluate(async (grey) => {
    const found = async (context, rules) => (await window.axe.run(context, { resultTypes: ["violations"], rules })).violations;
    if (!grey) return found(document, {});
    return [...await found(document, { "color-contrast": { enabled: false } }), ...await found({ include: [["body"]], exclude: [[".data"]] }, {})];
  }, greyed);
  const bad = violations.filter((v) => ["serious", "critical"].includes(v.impact))
    .map((v) => `${v.id}: ${v.help}; ${v.nodes.slice(0, 3).map((n) => `${n.target} ${n.any.map((a) => a.message).join(" ")}`).join(" | ")}`);
  same(bad, [], `axe, ${where}`);
}
export const leaderOf = (page, role) =>
  page.evaluate((name) => document.querySelector(`#roles tr[data-row="${name}"] td:nth-child(3)`)?.innerText.replace(/^\w\s+/, "").trim(), role);

/** Runs scenes one after another; the first fault ends it. */
export async function play(scenes) {
  const chrome = await browser();
  try {
    for (const [name, scene] of scenes) {
      const begun = Date.now();
      const pages = [];
      await scene(async (options) => {
        const page = await open(chrome, options);
        pages.push(page);
        return page;
      }).catch(async (error) => {
        if (pages[0]) await shoot(pages[0], "failed");
        throw new Error(`${name}: ${error.message}`);
      });
      for (const page of pages) {
        same(page.faults, [], `${name}: faults in the browser`);
        await page.context().close();
      }
      console.log(`ok ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
    }
    console.log("done");
  } catch (error) {
    console.log(`failed ${error.message.replaceAll("\n", " ")}`);
    process.exitCode = 1;
  } finally {
    await chrome.close();
  }
}
