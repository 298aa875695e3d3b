"use strict";  // What is live on the page of a session. Without it every page shows how things stood when it was loaded.
const MAX_LOGGED = 400, byId = id => document.getElementById(id);
let live = byId("live"), seat = document.querySelector("main[data-asked]"), waiting = new Map(), composing = false;
const fieldsOf = part => [...part.querySelectorAll("input:not([type=hidden], [type=range]), textarea, select")];
const nameOf = ({ form, name, type, value }) => [form?.getAttribute("action"), form?.elements.key?.value, name,
  type === "radio" ? value : ""].join("\n");
const isChanged = field => field.tagName === "SELECT" ? [...field.options].some(one => one.selected !== one.defaultSelected)
  : /checkbox|radio/.test(field.type) ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;

// Puts another part in the place of one, and keeps there what is opened, typed and focused.
function replace(part, put) {
  const open = new Map([...part.querySelectorAll("details")].map(fold => [fold.firstElementChild?.textContent, fold.open]));
  const typed = fieldsOf(part).filter(isChanged).map(field => [nameOf(field), field.value, field.checked]);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const place = e => e.form ? nameOf(e) : e.textContent;
  part = put();
  for (const fold of part.querySelectorAll("details")) fold.open = open.get(fold.firstElementChild?.textContent) ?? fold.open;
  for (const [name, value, checked] of typed)
    for (const field of fieldsOf(part).filter(field => nameOf(field) === name)) [field.value, field.checked] = [value, checked];
  const again = focused && [...part.querySelectorAll(focused.tagName)].find(e => place(e) === place(focused));
  again?.focus({ preventScroll: true });
  if (focused?.selectionStart != null) again?.setSelectionRange?.(focused.selectionStart, focused.selectionEnd);
}

// A part waits while something in it is pressed, composed by an input method, or chosen from a list.
for (const kind of ["start", "end"]) addEventListener(`composition${kind}`, () => { composing = kind === "start"; });
const isHeld = part => part.matches(composing ? ":active, :focus-within" : ":active, :has(select:focus)");
function replacePart(name, html) {
  const part = byId(`live-${name}`);
  waiting.delete(name);
  if (part) isHeld(part) ? waiting.set(name, html) : replace(part, () => { part.innerHTML = html; return part; });
}

// A session that goes on: its stream of events rings, and `ask` fetches what has changed.
const LOST = "Reconnecting …", REFUSALS = { 401: "Log in again, and load the page.", 404: "This session was removed." };
let source = null, timer = 0, asking = false, cursor = 0, wait = 250, isReached = true;
const state = live ? { version: live.dataset.version, after: live.dataset.after, actions: live.dataset.actions } : {};
const say = words => { if (byId("connection").textContent !== words) byId("connection").textContent = words; };
const soon = milliseconds => { timer ||= setTimeout(ask, milliseconds); };
const close = () => { source?.close(); source = null; }, end = () => { close(); live.dataset.events = ""; };
const parsed = async answer => new DOMParser().parseFromString(await answer?.text().catch(() => "") ?? "", "text/html");
async function ask() {
  timer = clearTimeout(timer);
  if (asking) return soon(50); else asking = true;
  try {
    const answer = await fetch(`${live.dataset.path}/fragments?${new URLSearchParams(state)}`, { redirect: "error" });
    if (REFUSALS[answer.status]) { end(); return say(REFUSALS[answer.status]); }
    if (!answer.ok) throw new Error(answer.status);
    take(await answer.json());
    [wait, isReached] = [250, true];
    if (source?.readyState === EventSource.OPEN) say("");
  } catch { isReached = false; say(LOST); soon(wait = Math.min(2 * wait, 5000)); } finally { asking = false; }
}
function take(news) {
  for (const [name, html] of Object.entries(news.parts)) replacePart(name, html);
  byId("log").insertAdjacentHTML("beforeend", news.log.join(""));
  while (byId("log").children.length > MAX_LOGGED) byId("log").firstElementChild.remove();
  Object.assign(state, { version: news.version, after: news.after, actions: news.actions });
  if (news.more) soon(0); else if (news.layout !== live.dataset.layout) { end(); showReport(); }
}
// Puts the page of the finished session in the place of this one, when nothing here is typed or pressed.
async function showReport(wait = 1000) {
  const isBusy = () => document.hidden || isHeld(live) || fieldsOf(live).some(isChanged);
  const answer = isBusy() ? null : await fetch(live.dataset.path, { redirect: "error" }).catch(() => null);
  if (REFUSALS[answer?.status]) return say(REFUSALS[answer.status]);
  const next = (await parsed(answer)).getElementById("live");
  if (next?.dataset.layout === "finished" && !isBusy()) return replace(live, () => { live.replaceWith(next); return live = next; });
  say("The session has ended. Load the page to see its report.");
  setTimeout(showReport, wait, Math.min(2 * wait, 8000));
}
function open() {
  if (!live?.dataset.events || document.hidden || source) return;
  source = new EventSource(cursor ? live.dataset.events.replace(/after=\d+/, `after=${cursor}`) : live.dataset.events);
  for (const kind of live.dataset.kinds.split(" "))
    source.addEventListener(kind, event => { cursor = event.lastEventId || cursor; soon(50); });
  source.onopen = ask;  // what came meanwhile, and whether this server knows it
  source.onerror = () => {
    if (!document.hidden) { isReached = false; say(LOST); }
    soon(500);  // it has ended, was refused, or is gone: the parts tell which
    if (source?.readyState === EventSource.CLOSED) { close(); setTimeout(open, 3000); }
  };
}
document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
addEventListener("pagehide", close); addEventListener("pageshow", open);  // also after the first load
setInterval(() => {
  for (const [name, html] of [...waiting]) replacePart(name, html);
  for (const time of document.querySelectorAll("time.since"))
    time.textContent = `${Math.max(0, Math.round((Date.now() - Date.parse(time.dateTime)) / 1000))} s ago`;
}, 1000);
// A link to a message that is on this page does not leave it. One in a picture has no parts of an address.
document.addEventListener("click", event => {
  const href = event.target.closest("a")?.getAttribute("href"), link = href && new URL(href, location);
  const isMessage = link?.pathname === live?.dataset.path && /^#(call|message)-\d+$/.test(link?.hash);
  if (!isMessage || !byId(link.hash.slice(1)) || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  location.hash = link.hash;
});
const slider = byId("slider"), play = byId("play");  // on the page of a session as it was
let shown = slider?.value, showing = false, playing = 0;
async function show(n) {
  [slider.value, byId("event").value] = [n, Math.min(n, slider.max)];
  if (slider.value === slider.max) stop();
  if (showing) return; else showing = true;
  try {
    while (shown !== slider.value) {
      shown = slider.value;
      const { parts, log: messages } = await (await fetch(`${live.dataset.path}/fragments?at=${shown}`)).json();
      for (const [name, html] of Object.entries(parts)) replacePart(name, html);
      byId("log").innerHTML = messages.join("");
      history.replaceState(null, "", `${live.dataset.path}/at/${shown}`);
    }
  } catch { shown = stop(); say("This moment could not be loaded."); } finally { showing = false; }
}
const stop = () => { playing = clearInterval(playing); play.textContent = "Play"; };
if (slider && live.dataset.layout === "replay") {
  slider.addEventListener("input", () => show(slider.value));
  play.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
  play.addEventListener("click", () => playing ? stop()
    : [playing, play.textContent] = [setInterval(() => show(Number(slider.value) + 1), 700), "Pause"]);
}

// The page of a seat shows by itself what is asked of it next, unless something there is typed.
async function look() {
  if (document.hidden) return;
  const answer = await fetch(location.pathname, { headers: { accept: "text/html" } }).catch(() => null);
  const page = await parsed(answer), next = page.querySelector("main[data-asked]");
  if (isReached !== (isReached = Boolean(next) || answer?.status === 404)) say(isReached ? "" : LOST);
  if (!isReached || next?.dataset.asked === seat.dataset.asked) return;
  if (!next) return say("This link does not open the seat any more.");
  if (isHeld(seat) || fieldsOf(seat).some(isChanged)) return say("This is not asked any more. Load the page to see what is.");
  replace(seat, () => { seat.replaceWith(next); document.title = page.title; return seat = next; });
  say(seat.dataset.asked ? "There is a new question to you." : "");
}
if (seat) setInterval(look, 3000);

// What is sent to a server that is not there would be lost with its page.
addEventListener("submit", event => {
  if (!isReached) { event.preventDefault(); say(`${LOST} Nothing was sent; what you typed is still here.`); }
});

// What no browser can check of an answer, the server checks while it is typed.
addEventListener("input", async ({ target: field }) => {
  if (!field.dataset.check) return;
  const typed = field.value, body = new URLSearchParams([...new FormData(field.form), ["do", "check"]]);
  field.setCustomValidity("");
  await new Promise(done => setTimeout(done, 400));
  const answer = field.value === typed ? await fetch(field.form.action, { method: "POST", body }).catch(() => null) : null;
  const wrong = await answer?.json().catch(() => null);
  if (wrong && field.value === typed) field.setCustomValidity(byId(`${field.id}-now`).textContent = wrong[field.name] ?? "");
});
