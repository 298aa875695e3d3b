// What is live on the page of a session. Without it every page works, and shows how things stood when it was loaded.
"use strict";
const MAX_LOGGED = 400, byId = id => document.getElementById(id);
const live = byId("live"), log = byId("log"), slider = byId("slider"), play = byId("play");

// --- parts of the page

const fieldsOf = part => [...part.querySelectorAll("input:not([type=hidden]), textarea, select")];
const nameOf = field => [field.form?.getAttribute("action"), field.form?.elements.key?.value, field.name,
  field.type === "radio" ? field.value : ""].join("\n");
const isChanged = field => field.type === "checkbox" || field.type === "radio" ? field.checked !== field.defaultChecked
  : field.tagName === "SELECT" ? [...field.options].some(option => option.selected !== option.defaultSelected)
  : field.value !== field.defaultValue;

// Puts new HTML into a part, and keeps there what is opened, typed and focused.
function replacePart(name, html) {
  const part = byId(`live-${name}`);
  if (!part) return;
  const open = new Map([...part.querySelectorAll("details")].map(fold => [fold.firstElementChild?.textContent, fold.open]));
  const typed = fieldsOf(part).filter(isChanged).map(field => [nameOf(field), field.value, field.checked]);
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const place = focused && (focused.form ? nameOf(focused) : focused.textContent);
  const [start, end] = focused?.selectionStart === undefined ? [] : [focused.selectionStart, focused.selectionEnd];
  part.innerHTML = html;
  for (const fold of part.querySelectorAll("details")) fold.open = open.get(fold.firstElementChild?.textContent) ?? fold.open;
  for (const [name, value, checked] of typed)
    for (const field of fieldsOf(part).filter(field => nameOf(field) === name)) [field.value, field.checked] = [value, checked];
  if (!focused) return;
  const again = [...part.querySelectorAll(focused.tagName)].find(e => (e.form ? nameOf(e) : e.textContent) === place);
  again?.focus({ preventScroll: true });
  if (start != null) again?.setSelectionRange?.(start, end);
}

// --- a session that goes on

let source = null, timer = 0, asking = false, askAgain = false, cursor = 0, wait = 250;
const state = live ? { version: live.dataset.version, after: live.dataset.after, actions: live.dataset.actions } : {};

const say = words => { if (byId("connection").textContent !== words) byId("connection").textContent = words; };
const soon = (milliseconds = 100) => { timer ||= setTimeout(() => { timer = 0; ask(); }, milliseconds); };
const close = () => { source?.close(); source = null; };

async function ask() {
  if (asking) { askAgain = true; return; }
  asking = true;
  try {
    const answer = await fetch(`${live.dataset.path}/fragments?${new URLSearchParams(state)}`, { redirect: "error" });
    const refusal = { 401: "Log in again, and load the page.", 404: "This session was removed." }[answer.status];
    if (refusal) { close(); live.dataset.events = ""; say(refusal); return; }
    if (!answer.ok) throw new Error(answer.status);
    take(await answer.json());
    wait = 250;
    if (source?.readyState === EventSource.OPEN) say("");
  } catch {
    say("Reconnecting …");
    soon(wait = Math.min(2 * wait, 5000));
  } finally {
    asking = false;
    if (askAgain) { askAgain = false; soon(); }
  }
}

function take(news) {
  for (const [name, html] of Object.entries(news.parts)) replacePart(name, html);
  log.insertAdjacentHTML("beforeend", news.log.join(""));
  while (log.children.length > MAX_LOGGED) log.firstElementChild.remove();
  Object.assign(state, { version: news.version, after: news.after, actions: news.actions });
  if (news.more) soon(0);
  else if (news.layout !== live.dataset.layout) {
    close();
    live.dataset.events = "";
    if (fieldsOf(live).some(field => field !== slider && isChanged(field))) say("The session has ended. Load the page to see its report.");
    else location.reload();
  }
}

function open() {
  if (!live?.dataset.events || document.hidden || source) return;
  source = new EventSource(cursor ? live.dataset.events.replace(/after=\d+/, `after=${cursor}`) : live.dataset.events);
  const news = event => { cursor = event.lastEventId || cursor; soon(); };
  for (const kind of live.dataset.kinds.split(" ")) source.addEventListener(kind, news);
  source.onopen = () => soon(0);  // what came meanwhile, and whether this server knows it
  source.onerror = () => {
    if (!document.hidden) say("Reconnecting …");
    if (source?.readyState !== EventSource.CLOSED) return;
    close();  // it has ended, or was refused: the parts tell which
    soon(500);
    setTimeout(open, 3000);
  };
}

if (live?.dataset.events) {
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
  setInterval(() => {
    for (const time of document.querySelectorAll("time.since"))
      time.textContent = `${Math.max(0, Math.round((Date.now() - Date.parse(time.dateTime)) / 1000))} s ago`;
  }, 1000);
}

// A link to a message that is on this page does not leave it.
document.addEventListener("click", event => {
  const link = event.target.closest("a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || link.pathname !== live?.dataset.path) return;
  if (!/^#(call|message)-\d+$/.test(link.hash) || !byId(link.hash.slice(1))) return;
  event.preventDefault();
  location.hash = link.hash;
});

// --- the slider

let shown = Number(slider?.value), wanted = shown, playing = 0;

async function showWanted() {
  if (asking || wanted === shown) return;
  asking = true;
  try {
    const answer = await fetch(`${live.dataset.path}/fragments?at=${shown = wanted}`);
    if (!answer.ok) throw new Error(answer.status);
    const { parts, log: messages } = await answer.json();
    for (const [name, html] of Object.entries(parts)) replacePart(name, html);
    log.innerHTML = messages.join("");
    history.replaceState(null, "", `${live.dataset.path}/at/${shown}`);
  } catch { stop(); } finally { asking = false; setTimeout(showWanted); }
}

function move(n) {
  wanted = Math.min(Math.max(n, 1), Number(slider.max));
  slider.value = byId("event").value = wanted;
  showWanted();
  if (wanted === Number(slider.max)) stop();
}

function stop() {
  clearInterval(playing);
  playing = 0;
  play.textContent = "Play";
}

if (slider && live.dataset.layout === "replay") {
  slider.addEventListener("input", () => move(Number(slider.value)));
  play.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
  play.addEventListener("click", () => {
    if (playing) return stop();
    playing = setInterval(() => move(wanted + 1), 700);
    play.textContent = "Pause";
  });
}
