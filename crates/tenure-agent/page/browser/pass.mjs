// The pass of every change, below a minute: the leader is shown, a failover appears without a reload, an order
// works, the timeline draws, an outage is told, the phone, the dark, and the keyboard.

import { READER, SECURE, TOKEN, check, inspect, leaderOf, order, play, same, sees } from "./kit.mjs";

const signIn = async (page, token) => {
  await page.fill("#token", token);
  await page.keyboard.press("Enter");
};
/** Buttons of the header that reach beyond the page. */
const cut = (page) => page.evaluate(() => [...document.querySelectorAll("header .btn, #title")].filter((e) => e.getClientRects().length && e.getBoundingClientRect().right > innerWidth).map((e) => e.id));
const leaderIs = (page, role, name) => page.waitForFunction(([r, n]) => document.querySelector(`#roles tr[data-row="${r}"] td:nth-child(3)`)?.innerText.includes(n), [role, name]);

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
    // Enter takes what was typed, also before it is drawn.
    const taken = await page.evaluate(() => {
      const find = document.querySelector("#q");
      find.focus();
      find.value = "mail";
      find.dispatchEvent(new Event("input"));
      find.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
      return document.activeElement.closest("tr[data-row]")?.dataset.row;
    });
    same(taken, "mail", "the role that Enter takes");
  }],

  ["an order asks, works, and says who gave it", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    const before = await leaderOf(page, "export"), after = before.startsWith("north") ? "east" : "north";
    await page.click('#roles tr[data-row="export"] a');
    await page.click('#panel [data-order="step_down"]');
    // Without a token there is no order.
    await sees(page, "dialog[open]", /needs a token of scope order/);
    await inspect(page, "sign-in");
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
    await inspect(page, "confirmation");
    await page.click("dialog[open] .btn.pri");
    await sees(page, "#done", /deploy-bot ordered/);
    await leaderIs(page, "export", after);
    await sees(page, "#recent", new RegExp(`deploy-bot asked ${before} to step down from export`));
    await sees(page, "#panel", /step down[\s\S]*by deploy-bot/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
  }],

  ["an order without an answer is not said to have failed", async (open) => {
    const page = await open();
    await page.click("#me");
    await signIn(page, TOKEN);
    await sees(page, "#me", /deploy-bot/);
    const epoch = +(await page.innerText('#roles tr[data-row="mail"] td:nth-child(4)'));
    const sent = [];
    const give = async (end) => {
      await page.route("**/api/v1/orders", (route) => {
        sent.push(route.request().postDataJSON());
        return end(route);
      });
      await page.click('#roles tr[data-row="mail"] [data-order="step_down"]');
      await page.click("dialog[open] button[value=go]");
    };
    const again = async () => {
      await page.click("#done [data-dismiss]");
      await page.unroute("**/api/v1/orders");
    };
    await give((route) => route.abort());
    await sees(page, "#done", /Not known whether it was ordered: the page's server did not answer; look at the events/);
    await again();
    await give((route) => route.fulfill({ status: 502, contentType: "text/html", body: "<h1>Bad Gateway</h1>" }));
    await sees(page, "#done", /Not known whether it was ordered: the server answered 502; look at the events/);
    await again();
    await give((route) => route.fulfill({ status: 504, contentType: "application/json", body: '{"error": "that may have been recorded: look at the events"}' }));
    await sees(page, "#done", /Not known whether it was ordered: that may have been recorded: look at the events\./);
    await again();
    // The leader changed while the person read: the real server's answer.
    await give((route) => route.continue({ postData: JSON.stringify({ ...sent.at(-1), epoch: epoch - 1 || 99 }) }));
    await sees(page, "#done", /Not ordered: .*mail has changed its leader since/);
    same(sent.map((order_) => [order_.order, order_.role, order_.epoch]), Array(4).fill(["step_down", "mail", epoch]), "what was confirmed is what was ordered");
  }],

  ["nothing is shown before a token is, and a session that ends is begun again", async (open) => {
    const page = await open({ url: SECURE, strange: true });
    await sees(page, "dialog[open] h2", /Sign in/);
    await sees(page, "#verdict h1", /Sign in to see the roles/);
    await inspect(page, "sign-in-first");
    same(await page.locator(".card:visible").count(), 0, "cards that are shown");
    check(!/export|orders-prod/.test(await page.evaluate(() => document.documentElement.textContent)), "something is shown before a token is");
    await signIn(page, READER);
    await sees(page, "#verdict h1", /All \d+ roles are led/);
    await sees(page, "#title", /^orders-prod$/);
    check(/All led · orders-prod · Tenure/.test(await page.title()), `the title is ${await page.title()}`);
    await sees(page, "#live", /Live/);
    await page.evaluate(() => (window.notReloaded = true));
    // A server that is started anew knows no session: what is shown is told to be old, and a person may type in peace.
    order("restart-secure");
    await sees(page, "dialog[open]", /This page needs a token/);
    await sees(page, "#banner", /Your session has ended[\s\S]*as of \d\d:\d\d:\d\d/);
    check(!/Live/.test(await page.innerText("#live")), "a picture that stands still is called live");
    await page.keyboard.type("half a tok");
    await page.waitForTimeout(3200);
    same(await page.inputValue("#token"), "half a tok", "what was typed");
    await signIn(page, TOKEN);
    await page.waitForSelector("#banner", { state: "hidden" });
    await sees(page, "#live", /Live/);
    // Pause and resume: both are seen by what the stream says.
    await page.click('#roles tr[data-row="mail"] a');
    await page.click('#panel [data-order="pause"]');
    await sees(page, "dialog[open] h2", /Pause mail\?/);
    await sees(page, "dialog[open]", /In orders-prod[\s\S]*ends its work and releases mail[\s\S]*No member leads it until an operator resumes it/);
    await page.click("dialog[open] .btn.bad");
    await sees(page, "#done", /deploy-bot ordered: mail is paused/);
    await sees(page, '#roles tr[data-row="mail"]', /Paused/);
    await sees(page, "#verdict h1", /1 paused by order/);
    await sees(page, "#needs", /mail is paused/);
    await page.keyboard.press("Escape");
    await page.click('#needs [data-order="resume"]');
    await sees(page, "dialog[open] h2", /Resume mail\?/);
    await page.click("dialog[open] .btn.pri");
    await sees(page, '#roles tr[data-row="mail"]', /Led/);
    await sees(page, "#verdict h1", /All \d+ roles are led/);
    await sees(page, "#recent", /deploy-bot resumed mail/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
    await page.setViewportSize({ width: 390, height: 844 });
    same(await cut(page), [], "what is cut off at the edge of a phone");
    // Signing out leaves nothing behind.
    await page.click("#me");
    await sees(page, "#verdict h1", /Sign in to see the roles/);
    same(await page.locator("#roles tr").count(), 0, "roles that are shown to no one");
  }],

  ["a server that stands still is told, and so is its return", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    await sees(page, "#live", /Live/);
    order("freeze-page");
    await sees(page, "#banner", /Away for .*the page's server is silent/);
    await sees(page, "#live", /As of/);
    order("thaw-page");
    await page.waitForSelector("#banner", { state: "hidden" });
    await sees(page, "#live", /Live/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
  }],

  ["a link to a moment shows that moment", async (open) => {
    const at = new Date(Date.now() - 3 * 3600_000), hour = at.toISOString().slice(11, 13);
    const page = await open({ path: `?at=${at.toISOString()}&zoom=5m` });
    same(await page.locator('[data-zoom="5m"]').getAttribute("aria-pressed"), "true", "the zoom of the link");
    same(await page.locator("#tolive").getAttribute("aria-pressed"), "false", "whether it shows the present");
    const [from, to] = (await page.innerText("#range")).match(/\d\d:\d\d/g), minute = (text) => +text.slice(0, 2) * 60 + +text.slice(3);
    const past = (text) => (minute(at.toISOString().slice(11, 16)) - minute(text) + 1440) % 1440;
    check(past(from) <= 3 && past(to) >= 1437, `the moment of ${hour} h is not within ${from} – ${to}`);
    await page.keyboard.press("l");
    await page.waitForFunction(() => document.querySelector("#tolive").getAttribute("aria-pressed") === "true");
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
    await sees(page, "#panel", /failed\s+ordered by deploy-bot[\s\S]*?Attempt 1[\s\S]*?exit 3[\s\S]*?no such table/);
    await page.locator('#panel [data-again="broken"]').first().click();
    await sees(page, "dialog[open]", /runs once more[\s\S]*It ended failed after 1 attempts? with: ERROR: no such table/);
    await page.click("dialog[open] .btn.pri");
    await sees(page, "#done", /of broken runs again/);
    await sees(page, "#panel", /Attempt 2[\s\S]*exit 3/);
  }],

  ["a dead letter that the picture does not have runs again all the same", async (open) => {
    const page = await open();
    await page.route("**/api/v1/snapshot*", async (route) => {
      const response = await route.fetch(), json = await response.json();
      json.schedules.dead = [];
      await route.fulfill({ response, json });
    });
    await page.reload();
    await page.click('#me');
    await signIn(page, TOKEN);
    await sees(page, "#me", /deploy-bot/);
    await page.click('[data-schedule="broken"]');
    await page.locator('#panel [data-again="broken"]').last().click();
    await sees(page, "dialog[open]", /runs once more[\s\S]*It ended failed after \d+ attempts? with: ERROR: no such table/);
  }],

  ["a failover appears without a reload", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    const before = await leaderOf(page, "export"), after = before.startsWith("north") ? "east" : "north";
    order("kill-leader");
    await leaderIs(page, "export", after);
    await sees(page, "#recent", new RegExp(`${before} to ${after}\\S*, .* without a leader`));
    await sees(page, "#feed", /lost/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
  }],

  ["a phone has room for it, and the dark is dark", async (open) => {
    const phone = await open({ width: 390, height: 844, dark: true });
    const wide = await phone.evaluate(() => document.documentElement.scrollWidth);
    check(wide <= 390, `the page is ${wide} wide on a phone`);
    same(await cut(phone), [], "what is cut off at the edge of a phone");
    const back = await phone.evaluate(() => getComputedStyle(document.body).backgroundColor);
    same(back, "rgb(14, 16, 19)", "the background in the dark");
  }],

  ["an outage is told with its age, and ends by itself", async (open) => {
    const page = await open();
    await page.evaluate(() => (window.notReloaded = true));
    await page.click('[data-schedule="broken"]');
    const again = page.locator('#panel [data-again="broken"]').first();
    check(await again.isEnabled(), "a dead letter may run again");
    order("stop-database");
    await sees(page, "#banner", /Away for .*the database does not answer/);
    await sees(page, "#verdict h1", /Not known since \d\d:\d\d:\d\d/);
    const off = await page.locator('#roles [data-order="step_down"]').first().isDisabled();
    check(off && await again.isDisabled(), "orders are off while the database is away");
    await page.keyboard.press("Escape");
    await inspect(page, "outage", true);
    order("start-database");
    await page.waitForSelector("#banner", { state: "hidden" });
    await sees(page, "#verdict h1", /roles (are )?led/);
    check(await page.evaluate(() => window.notReloaded), "the page was loaded again");
    // Nothing is known of the time between, whatever the terms say that were written afterwards.
    await sees(page, "#legend", /not known/);
    await sees(page, "#verdict", /Longest gap, 1 h\s+≥ [\d.]+\s\w+/);
    for (const list of ["#recent", "#feed"]) await sees(page, list, /at least [\d.]+\s\w+ without a leader/);
    await page.click('#roles tr[data-row="export"] a');
    await sees(page, "#panel", /≥ [\d.]+\s\w+/);
  }],
];

if (process.argv[1].endsWith("pass.mjs")) await play(scenes);
