// Orders: each asks for confirmation that names the consequence, is sent with the token's name, and says
// afterwards what was recorded.

import { $, fill, h, say } from "/dom.js";
import { ask, data, leads, start, successors } from "/store.js";
import { hms, clock, when } from "/time.js";
import { sign, who } from "/look.js";
import { button } from "/cards.js";

const dialog = $("#ask");
const JSON_ = { "content-type": "application/json" };
let after = () => {};
export function onDone(done) {
  after = done;
}

function confirm({ title, points, verb, bad = false, done }) {
  const form = h("form", { method: "dialog" }, h("h2", { id: "h-ask" }, title),
    data.me.title ? h("p", null, "In ", h("b", null, data.me.title), ". What will happen:") : h("p", null, "What will happen:"),
    h("ul", null, points.filter(Boolean).map((point) => h("li", null, point))),
    h("div.acts", null, h("button.btn", { value: "", autofocus: true }, "Cancel"), h("button.btn", { class: bad ? "bad" : "pri", value: "go" }, verb)));
  dialog.replaceChildren(form);
  dialog.onclose = () => {
    const go = dialog.returnValue === "go";
    dialog.returnValue = "";
    if (go) done();
  };
  dialog.showModal();
}
const recorded = () => `The order is recorded in the event log with your name, ${data.me.name}.`;

/** A message that stays until the next one, or until it is closed. */
export function tell(words, failed = false) {
  const box = $("#done");
  box.hidden = false;
  box.classList.toggle("failed", failed);
  fill(box, [sign(failed ? "crit" : "ok"), h("p", null, words), button("Close", { "data-dismiss": true }, "quiet")]);
  say(words);
}

async function give(order, words) {
  try {
    const answer = await ask("/api/v1/orders", { method: "POST", headers: JSON_, body: JSON.stringify(order) });
    tell(`${hms(clock())} ${answer.by} ordered: ${words}.`);
    after();
  } catch (error) {
    if (error.status === 401) signIn("Your session has ended. Nothing was ordered.");
    else if (error.certain) tell(`Not ordered: ${error.message}.`, true);
    else {
      // No answer, or one of something between us and the server: the order may have been recorded.
      const why = error.status ? error.message : "the page's server did not answer";
      tell(`Not known whether it was ordered: ${why}${/events/.test(why) ? "" : "; look at the events before you repeat it"}.`, true);
      after();
    }
  }
}

/** Whether this person may order; if not, it is said what to do. */
function may(terminal) {
  if (data.outage) {
    tell(`No order can be given now: ${data.outage.why}.`, true);
    return false;
  }
  if (data.me.scope === "order") return true;
  if (!data.me.tokens) {
    dialog.replaceChildren(h("form", { method: "dialog" }, h("h2", { id: "h-ask" }, "Orders are off here"),
      h("p", null, "The page was started without a file of tokens, so that it only shows. In a terminal:"), h("pre", null, terminal),
      h("div.acts", null, h("button.btn.pri", { autofocus: true }, "Close"))));
    dialog.onclose = null;
    dialog.showModal();
    return false;
  }
  signIn(data.me.scope ? `The token ${data.me.name} may read, not order. Sign in with one of scope order.` : "An order needs a token of scope order.");
  return false;
}

// An order is never skipped for an overlap: only `replace` makes a difference to it.
const WAITS = "If a run is under way then, this one waits for its end.";
const OVERLAP = {
  forbid: WAITS,
  queue: WAITS,
  replace: "A run that is under way then is ended for this one (overlap: replace).",
};

export const orders = {
  step_down(role, to) {
    if (!may(`tenure step-down --role ${role.name}${to ? ` --to ${to}` : ""}`)) return;
    const leader = who(role.leader), next = to || (successors(role)[0] || {}).member, epoch = role.epoch;
    confirm({
      title: `Step down ${leader} from ${role.name}?`,
      points: [
        `${leader} ends its work on ${role.name}, within its drain limit, and releases the role.`,
        next ? `${who(next)} ${to ? "leads" : "most likely leads"} next, under an epoch above ${epoch}. Writes fenced with epoch ${epoch} are refused from then on.`
          : "No other candidate is ready: the role stays without a leader until one is, or until this one's cool-down is over.",
        next ? `Expect milliseconds without a leader once its work has ended. If ${who(next)} does not answer, the next ready candidate takes over.` : null,
        recorded(),
      ],
      verb: next ? `Step down, hand to ${who(next)}` : "Step down, leave it without a leader", bad: !next,
      done: () => give({ order: "step_down", role: role.name, to: to || null, epoch }, `${leader} steps down from ${role.name}${to ? ` for ${who(to)}` : ""}`),
    });
  },
  pause(role) {
    if (!may(`tenure pause --role ${role.name}`)) return;
    confirm({
      title: `Pause ${role.name}?`,
      points: [leads(role) ? `${who(role.leader)} ends its work and releases ${role.name}.` : `${role.name} has no leader now.`,
        h("b", null, "No member leads it until an operator resumes it."), "Its schedules miss their slots. Tenure’s own alert about a missing leader leaves paused roles out.", recorded()],
      verb: "Pause, leave it without a leader", bad: true,
      done: () => give({ order: "pause", role: role.name, epoch: role.epoch }, `${role.name} is paused`),
    });
  },
  resume(role) {
    if (!may(`tenure resume --role ${role.name}`)) return;
    const next = successors(role)[0];
    confirm({
      title: `Resume ${role.name}?`,
      points: [next ? `${who(next.member)}, the best ready candidate, leads within milliseconds, under an epoch above ${role.epoch}.` : "No candidate is ready: the role stays vacant until one is.", recorded()],
      verb: "Resume", done: () => give({ order: "resume", role: role.name }, `${role.name} is resumed`),
    });
  },
  run(schedule) {
    if (!may(`tenure schedule run ${schedule.name}`)) return;
    confirm({
      title: `Run ${schedule.name} now?`,
      points: [`It runs once, on the leader of ${schedule.role}, beside its slots.`, OVERLAP[schedule.overlap] || null, recorded()],
      verb: "Run now", done: () => give({ order: "run", schedule: schedule.name }, `${schedule.name} runs now`),
    });
  },
  again(letter) {
    if (!may(`tenure schedule run ${letter.schedule} --slot ${letter.at}`)) return;
    const last = (letter.output || "").trim().split("\n").at(-1);
    confirm({
      title: `Run ${letter.schedule} again?`,
      points: [`The slot of ${when(letter.slot)} runs once more, on the leader of its role. What its earlier attempts did stays done.`,
        last ? [`It ended ${letter.state} after ${letter.attempts} attempts with: `, h("code", null, last.slice(0, 200))] : `It ended ${letter.state} after ${letter.attempts} attempts.`,
        "It leaves the list of dead letters when it succeeds.", recorded()],
      verb: "Run again", done: () => give({ order: "run_again", schedule: letter.schedule, slot: letter.at }, `slot ${when(letter.slot)} of ${letter.schedule} runs again`),
    });
  },
};

/* ---- signing in ---- */

export function signIn(why) {
  // A person may be typing already.
  if (dialog.open && $("#token", dialog)) return;
  const field = h("input", { type: "password", name: "token", id: "token", autocomplete: "current-password", required: true, maxlength: "512" });
  const wrong = h("p.crit", { role: "alert" });
  const form = h("form", null, h("h2", { id: "h-ask" }, "Sign in"), h("p", null, why), h("label", { for: "token" }, "Token"), field, wrong,
    h("div.acts", null, data.me.may_read ? h("button.btn", { type: "button", "data-cancel": true }, "Cancel") : null, h("button.btn.pri", null, "Sign in")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      data.me = await ask("/api/v1/session", { method: "POST", headers: JSON_, body: JSON.stringify({ token: field.value }) });
      dialog.close();
      account();
      say(`Signed in as ${data.me.name}`);
      // The stream of a session that ended has ended, too.
      start();
    } catch (error) {
      wrong.textContent = `${error.message}.`;
      field.select();
    }
  });
  dialog.replaceChildren(form);
  dialog.onclose = null;
  if (!dialog.open) dialog.showModal();
  field.focus();
}
async function signOut() {
  await ask("/api/v1/session", { method: "DELETE" }).catch(() => {});
  location.reload();
}
/** The button of the header. */
export function account() {
  const me = $("#me");
  me.hidden = !data.me.tokens;
  me.textContent = data.me.name || "Sign in";
  me.setAttribute("aria-label", data.me.name ? `Signed in as ${data.me.name}, may ${data.me.scope}: sign out` : "Sign in");
  me.onclick = () => (data.me.name ? signOut() : signIn(data.me.may_read ? "A token lets you give orders." : "This page needs a token."));
  const brand = $("#title"), title = data.me.title;
  brand.hidden = !title;
  brand.textContent = title || "";
}
dialog.addEventListener("click", (event) => {
  if (event.target.closest("[data-cancel]")) dialog.close();
});
