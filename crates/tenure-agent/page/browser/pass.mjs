// The pass of every change, below a minute: the leader is shown, a failover appears without a reload, an order
// works, the timeline draws, an outage is told, the phone, the dark, and the keyboard.

import { TOKEN, check, leaderOf, order, play, same, sees } from "./kit.mjs";

export const scenes = [
  ["the leader is shown, and every role is led", async (open) => {
    const page = await open();
    await sees(page, "#verdict h1", /All \d+ roles are led/);
    const leader = await leaderOf(page, "export");
    check(/^(north|east)/.test(leader), `export is led by ${leader}`);
    await sees(page, "#members", /Beats/);
    await sees(page, "#needs", /failed for good/);
    await sees(page, "#schedules", /tick/);
    // What the server sends is text: a role cannot write into the page.
    await sees(page, "#roles", /<img src=x onerror=alert\(1\)>/);
    same(await page.locator("#roles img").count(), 0, "tags from a name");
  }],

  ["the timeline draws, and speaks to the keyboard", async (open) => {
    const page = await open();
    await page.waitForFunction(() => {
      const canvas = document.querySelector("#tl canvas"), data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, colours = new Set();
      for (let i = 0; i < data.length; i += 404) if (data[i + 3]) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`);
      return colours.size > 8;
    });
    await page.focus("#tl");
    await page.keyboard.press("ArrowDown");
    await sees(page, "#say", /epoch \d+/i);
    await page.keyboard.press("3");
    await page.waitForFunction(() => document.querySelector('[data-zoom="24h"]').getAttribute("aria-pressed") === "true");
    check(page.url().includes("zoom=24h"), "a link leads to the same view");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#panel:not([hidden]) h2");
    await sees(page, "#panel", /History/);
    await page.keyboard.press("Escape");
    await page.waitForSelector("#panel", { state: "hidden" });
    // Find, move, open, close: no mouse.
    await page.keyboard.press("/");
    await page.keyboard.type("export");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    await sees(page, "#panel h2", /export/);
    await page.keyboard.press("Escape");
    await page.waitForSelector("#panel", { state: "hidden" });
  }],

  ["an order asks, works, and says who gave it", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    const before = await leaderOf(page, "export"), after = before.startsWith("north") ? "east" : "north";
    await page.click('#roles tr[data-row="export"] a');
    await page.click('#panel [data-order="step_down"]');
    // Without a token there is no order.
    await sees(page, "dialog[open]", /needs a token of scope order/);
    await page.fill("#token", "wrong");
    await page.keyboard.press("Enter");
    await sees(page, "dialog[open] .crit", /not in the file of tokens/);
    await page.fill("#token", TOKEN);
    await page.keyboard.press("Enter");
    await sees(page, "#me", /deploy-bot/);
    await page.check(`#panel fieldset label:has(.m:has-text("${after}")) input`);
    await page.click('#panel [data-order="step_down"]');
    await sees(page, "dialog[open] h2", new RegExp(`Step down ${before} from export`));
    await sees(page, "dialog[open]", new RegExp(`${after}\\S* leads next, under an epoch above \\d+`));
    await sees(page, "dialog[open]", /recorded in the event log with your name, deploy-bot/);
    same(await page.evaluate(() => document.activeElement.textContent), "Cancel", "what has the focus");
    await page.click("dialog[open] .btn.pri");
    await sees(page, "#done", /deploy-bot ordered/);
    await page.waitForFunction((name) => document.querySelector('#roles tr[data-row="export"] td:nth-child(3)').innerText.includes(name), after);
    await sees(page, "#recent", new RegExp(`deploy-bot asked ${before} to step down from export`));
    await sees(page, "#panel", /step down[\s\S]*by deploy-bot/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
  }],

  ["a run by order: a schedule now, a dead letter again", async (open) => {
    const page = await open();
    await page.click('#me');
    await page.fill("#token", TOKEN);
    await page.keyboard.press("Enter");
    await sees(page, "#me", /deploy-bot/);
    await page.click('#schedules [data-run="broken"]');
    await sees(page, "dialog[open] h2", /Run broken now/);
    await sees(page, "dialog[open]", /runs once, on the leader of scheduler[\s\S]*this one waits for its end[\s\S]*your name, deploy-bot/);
    await page.click("dialog[open] .btn.pri");
    await sees(page, "#done", /deploy-bot ordered: broken runs now/);
    await sees(page, "#recent", /deploy-bot ordered a run: broken/);
    // It ran, and failed as it always does: one more dead letter, which runs again.
    await page.click('[data-schedule="broken"]');
    await sees(page, "#panel", /ordered by deploy-bot[\s\S]*Attempt 1[\s\S]*exit 3[\s\S]*no such table/);
    await page.locator('#panel [data-again="broken"]').first().click();
    await sees(page, "dialog[open]", /runs once more[\s\S]*It ended failed after 1 attempts? with: ERROR: no such table/);
    await page.click("dialog[open] .btn.pri");
    await sees(page, "#done", /of broken runs again/);
    await sees(page, "#panel", /Attempt 2[\s\S]*exit 3/);
  }],

  ["a failover appears without a reload", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    const before = await leaderOf(page, "export"), after = before.startsWith("north") ? "east" : "north";
    order("kill-leader");
    await page.waitForFunction((name) => document.querySelector('#roles tr[data-row="export"] td:nth-child(3)').innerText.includes(name), after);
    await sees(page, "#recent", new RegExp(`${before} to ${after}\\S*, .* without a leader`));
    await sees(page, "#feed", /lost/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
  }],

  ["a phone has room for it, and the dark is dark", async (open) => {
    const phone = await open({ width: 390, height: 844, dark: true });
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 390, `the page is ${wide} wide on a phone`);
    const back = await phone.evaluate(() => getComputedStyle(document.body).backgroundColor);
    same(back, "rgb(14, 16, 19)", "the background in the dark");
  }],

  ["an outage is told with its age, and ends by itself", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    order("stop-database");
    await sees(page, "#banner", /Away for .*the database does not answer/);
    await sees(page, "#verdict h1", /Not known since \d\d:\d\d:\d\d/);
    const off = await page.locator('#roles [data-order="step_down"]').first().isDisabled();
    check(off, "orders are off while the database is away");
    order("start-database");
    await page.waitForSelector("#banner", { state: "hidden" });
    await sees(page, "#verdict h1", /roles (are )?led/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
  }],
];

if (process.argv[1].endsWith("pass.mjs")) await play(scenes);
