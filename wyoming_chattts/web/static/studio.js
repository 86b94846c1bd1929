// The page: voices on one view, the running server on the other.

import { drawPlot, drawWave, frames, Player } from "./player.js";
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const LIVE_MS = 2000;
const STATE_MS = 10000;
const SAMPLES_KEPT = 120;
const STYLES = [
  { key: "speed", min: 0, max: 9, step: 1, value: 5 },
  { key: "oral", min: -1, max: 9, step: 1, value: -1 },
  { key: "laugh", min: -1, max: 2, step: 1, value: -1 },
  { key: "pause", min: -1, max: 7, step: 1, value: -1 },
  { key: "temperature", min: 0.05, max: 1, step: 0.05, value: 0.3 },
];

const player = new Player($("plain"));
let language = "en";
let state = { voices: [], problems: {} };
let stateText = "";
let live = null;
let source = { seed: 2 }; // what is tried: a seed, or the name of a voice
let rolled = [];
let speaking = null; // AbortController of the request that plays
let undoToken = null;
let history = { queue: [], steps: [], memory: [], hits: [] };
let lastSteps = null;
let connection = "connecting";

// ---- words

function t(key, ...values) {
  const text = WORDS[language][key] ?? WORDS.en[key] ?? key;
  return text.replace(/\{(\d)\}/g, (_, i) => values[i]);
}

function remember(key, value) {
  try { localStorage.setItem(key, value); } catch { /* a private window */ }
}

function recalled(key) {
  try { return localStorage.getItem(key); } catch { return null; }
}

function setLanguage(chosen) {
  const before = WORDS[language].sample;
  language = chosen in WORDS ? chosen : "en";
  document.documentElement.lang = language === "zh" ? "zh-Hans" : "en";
  $("language").value = language;
  for (const element of document.querySelectorAll("[data-t]")) element.textContent = t(element.dataset.t);
  for (const element of document.querySelectorAll("[data-t-label]")) element.setAttribute("aria-label", t(element.dataset.tLabel));
  document.title = t("title");
  if (!$("text").value || $("text").value === before) $("text").value = t("sample");
  showStyle();
  showAll();
}

// ---- talking to the server

async function call(path, options = {}) {
  const headers = { "X-Chattts-Studio": "1", ...(options.headers ?? {}) };
  const response = await fetch(path, { ...options, headers });
  if (!response.ok) {
    let text = response.statusText;
    try { text = (await response.json()).error ?? text; } catch { /* not JSON */ }
    const error = new Error(text);
    error.status = response.status;
    throw error;
  }
  return response;
}

async function send(method, path, data) {
  const response = await call(path, { method, body: JSON.stringify(data ?? {}), headers: { "Content-Type": "application/json" } });
  return response.json();
}

async function loadState() {
  const text = await (await call("api/state")).text();
  // what is under somebody's finger is not replaced for nothing
  if (text === stateText) return;
  stateText = text;
  state = JSON.parse(text);
  showVoices();
}

function setConnection(value) {
  connection = value;
  const element = $("connection");
  element.textContent = t(value);
  element.dataset.state = { ok: "ok", away: "bad", denied: "bad" }[value] ?? "wait";
}

async function poll() {
  let pause = LIVE_MS;
  try {
    live = await (await call("api/live")).json();
    const back = ["away", "connecting"].includes(connection);
    setConnection(live.status);
    if (back) await loadState();
    note(live);
    showServer();
  } catch (error) {
    setConnection(error.status === 401 ? "denied" : "away");
    pause = LIVE_MS * 2;
  }
  setTimeout(poll, document.hidden ? 5 * pause : pause);
}

// ---- making elements

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function figures(list, rows) {
  list.replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", { textContent: t(name) }), element("dd", { textContent: value }))));
}

function button(label, about, action) {
  const made = element("button", { type: "button", textContent: t(label), onclick: action });
  if (about) made.setAttribute("aria-label", t("ofVoice", t(label), about));
  return made;
}

// ---- style

function showStyle() {
  const values = styleValues();
  $("style").replaceChildren(...STYLES.map(({ key, min, max, step, value }) => {
    const input = element("input", { type: "range", id: `style-${key}`, min, max, step, value: values[key] ?? value });
    const output = element("output", { htmlFor: input.id });
    const show = () => {
      const shown = Number(input.value) < 0 ? t("auto") : input.value;
      output.textContent = shown;
      input.setAttribute("aria-valuetext", shown);
    };
    input.oninput = show;
    show();
    return element("div", { className: "style-row" }, element("label", { htmlFor: input.id, textContent: t(key) }), output, input);
  }));
}

function styleValues() {
  const values = {};
  for (const { key } of STYLES) if ($(`style-${key}`)) values[key] = Number($(`style-${key}`).value);
  return values;
}

function setStyle(values) {
  for (const { key, value } of STYLES) {
    const input = $(`style-${key}`);
    input.value = values[key] ?? value;
    input.oninput();
  }
}

function draft() {
  const { temperature, ...levels } = styleValues();
  const style = Object.fromEntries(Object.entries(levels).filter(([, value]) => value >= 0));
  return { seed: source.seed, temperature, style };
}

// ---- trying voices

function setSource(chosen) {
  source = chosen;
  $("speaker").textContent = chosen.voice ? t("voiceName", chosen.voice) : t("seedName", chosen.seed);
  if (!chosen.voice) $("seed").value = chosen.seed;
  $("keep").querySelector("button").disabled = Boolean(chosen.voice);
}

function roll() {
  setSource({ seed: crypto.getRandomValues(new Uint32Array(1))[0] });
  speak();
}

function showRolled() {
  $("rolled").replaceChildren(...rolled.map((seed) => element("li", {}, element("button", {
    type: "button", textContent: t("seedName", seed), onclick: () => { setSource({ seed }); speak(); },
  }))));
}

function stop() {
  speaking?.abort();
  player.stop();
}

async function speak() {
  stop();
  const mine = new AbortController();
  speaking = mine;
  player.begin();
  $("stop").disabled = false;
  $("said").textContent = t("speaking");
  $("timings").replaceChildren();
  if (source.seed !== undefined) {
    rolled = [source.seed, ...rolled.filter((seed) => seed !== source.seed)].slice(0, 12);
    showRolled();
  }
  const request = source.voice ? { voice: source.voice } : { draft: draft() };
  try {
    const response = await call("api/speak", {
      method: "POST", signal: mine.signal, body: JSON.stringify({ text: $("text").value, ...request }),
    });
    for await (const { kind, payload } of frames(response.body)) {
      if (speaking !== mine) return;
      if (kind === "a") {
        player.push(payload);
        showWave();
        continue;
      }
      const data = JSON.parse(new TextDecoder().decode(payload));
      if (kind === "h") player.rate = data.rate;
      if (kind === "t") showTimings(data);
      if (kind === "e") throw new Error(data.error);
    }
    player.end();
  } catch (error) {
    if (speaking === mine) $("said").textContent = mine.signal.aborted ? t("stopped") : error.message;
  } finally {
    if (speaking === mine) {
      speaking = null;
      $("stop").disabled = !player.sources.length;
    }
  }
}

function showWave() {
  drawWave($("wave"), player);
  $("wave").setAttribute("aria-label", player.count ? t("wave", player.seconds.toFixed(1)) : t("noWave"));
  $("wave").dataset.samples = player.count;
  $("wave").dataset.level = player.level.toFixed(4);
}

function showTimings(data) {
  const ms = (value) => (value === null ? "–" : `${value.toFixed(0)} ms`);
  figures($("timings"), [
    ["queue_ms", ms(data.queue_ms)], ["first_audio_ms", ms(data.first_audio_ms)], ["total_ms", ms(data.total_ms)],
    ["audio_s", `${data.audio_s.toFixed(2)} s`], ["rtf", data.rtf ?? "–"], ["cache", t("cacheOf", data.cache_hits, data.segments)],
  ]);
  const notes = [t("said")];
  if (data.fallback) notes.push(t("fallback"));
  else if (live?.engine?.synthetic) notes.push(t("synthetic"));
  $("said").textContent = notes.join(" ");
}

// ---- keeping voices

async function tried(action) {
  $("problem").textContent = "";
  try {
    await action();
  } catch (error) {
    $("problem").textContent = error.message;
    $("problem").scrollIntoView({ block: "nearest" });
  }
}

async function keep(event) {
  event.preventDefault();
  const name = $("name").value.trim();
  const kept = draft();
  const description = $("description").value.trim();
  if (description) kept.description = description;
  if (Number($("gain").value)) kept.gain_db = Number($("gain").value);
  $("kept").textContent = "";
  try {
    await send("POST", "api/voices", { name, draft: kept });
    $("kept").textContent = t("kept", name);
    $("keep").reset();
    await loadState();
  } catch (error) {
    $("kept").textContent = error.message;
  }
}

function voicePath(name) {
  return `api/voices/${encodeURIComponent(name)}`;
}

async function remove(name) {
  const { undo } = await send("DELETE", voicePath(name));
  undoToken = undo;
  $("undo").hidden = false;
  $("undo").firstElementChild.textContent = t("removed", name);
  await loadState();
  $("undo").querySelector("button").focus();
}

async function undo() {
  const { name } = await send("POST", "api/restore", { undo: undoToken });
  $("undo").hidden = true;
  await loadState();
  $("kept").textContent = t("restored", name);
}

async function rename(name) {
  const fresh = await ask(t("renameTitle", name), "", t("newName"), name);
  if (fresh && fresh !== name) {
    await send("PATCH", voicePath(name), { name: fresh });
    await loadState();
  }
}

async function exported(name) {
  const text = await (await call(`${voicePath(name)}/export`)).text();
  const link = element("a", { href: `data:application/yaml;charset=utf-8,${encodeURIComponent(text)}`, download: `${name}.yaml` });
  link.click();
}

async function imported(file) {
  if (!file) return;
  const response = await call(`api/import?file=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
  $("kept").textContent = t("imported", (await response.json()).name);
  $("import").value = "";
  await loadState();
}

function use(voice) {
  setStyle({ ...voice.style, temperature: voice.temperature });
  setSource(voice.seed === null ? { voice: voice.name } : { seed: voice.seed });
  $("text").focus();
}

function showVoices() {
  const focused = document.activeElement?.dataset?.key;
  $("voices").replaceChildren(...state.voices.map((voice) => {
    const own = voice.origin === "folder";
    const badge = voice.default ? element("span", { className: "badge", textContent: t("isDefault") }) : null;
    const who = element("div", { className: "who" }, element("strong", { textContent: voice.name }), badge, element("small", { textContent: voice.description }));
    const buttons = [
      button("play", voice.name, () => { setSource({ voice: voice.name }); speak(); }),
      button("use", voice.name, () => use(voice)),
      voice.default ? null : button("makeDefault", voice.name, () => tried(async () => { await send("POST", "api/default", { name: voice.name }); await loadState(); })),
      own ? button("rename", voice.name, () => tried(() => rename(voice.name))) : null,
      own ? button("remove", voice.name, () => tried(() => remove(voice.name))) : null,
      button("export", voice.name, () => tried(() => exported(voice.name))),
    ].filter((made) => made !== null);
    for (const made of buttons) made.dataset.key = `${voice.name}/${made.textContent}`;
    return element("li", {}, who, element("div", { className: "buttons" }, ...buttons));
  }));
  $("voices").querySelectorAll("button").forEach((made) => { if (focused && made.dataset.key === focused) made.focus(); });
  $("problems").replaceChildren(...Object.entries(state.problems).map(([name, text]) => element("li", { textContent: `${name}: ${text}` })));
}

function ask(title, text, label, value) {
  const dialog = $("ask");
  $("ask-title").textContent = title;
  $("ask-text").textContent = text;
  $("ask-label").textContent = label ?? "";
  $("ask-label").hidden = $("ask-value").hidden = label === null;
  $("ask-value").value = value ?? "";
  $("ask-yes").textContent = t("yes");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => resolve(dialog.returnValue === "yes" ? $("ask-value").value.trim() || true : null);
  });
}

// ---- the server

function note(now) {
  const figure = now.figures;
  const push = (name, value) => { history[name] = [...history[name], value].slice(-SAMPLES_KEPT); };
  push("queue", figure.active_requests ?? 0);
  push("memory", (figure.resident_memory_bytes ?? 0) / 1e6);
  const looked = (figure.cache_hits ?? 0) + (figure.cache_misses ?? 0);
  push("hits", looked ? (100 * figure.cache_hits) / looked : 0);
  const at = performance.now() / 1000;
  const steps = figure.decode_steps ?? 0;
  if (lastSteps && at > lastSteps.at) push("steps", Math.max(0, (steps - lastSteps.steps) / (at - lastSteps.at)));
  lastSteps = { at, steps };
}

function duration(seconds) {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(bytes < 1e8 ? 1 : 0)} MB`;
}

function showServer() {
  if (!live || $("view-server").hidden) return;
  const figure = live.figures;
  const { ok = 0, ...others } = live.outcomes;
  const failed = Object.values(others).reduce((a, b) => a + b, 0);
  const engine = live.engine;
  figures($("now"), [
    ["status", t(live.status)],
    ["engine", engine ? `${engine.name}, ${engine.device}, ${engine.precision}` : "–"],
    ["version", live.version], ["up", duration(figure.up_seconds)], ["requests", ok + failed], ["refused", failed],
    ["queue", `${figure.queue_depth ?? 0} / ${live.max_pending}`], ["slots", `${figure.slots_busy ?? 0} / ${figure.slots ?? 0}`],
    ["connections", figure.connections], ["memory", megabytes(figure.resident_memory_bytes)],
    ...(figure.gpu_memory_bytes === undefined ? [] : [["gpu", megabytes(figure.gpu_memory_bytes)]]),
  ]);
  $("reasons").replaceChildren(...live.reasons.map((reason) => element("li", { textContent: reason })));
  const looked = (figure.cache_hits ?? 0) + (figure.cache_misses ?? 0);
  figures($("cache"), [
    ["hitRate", looked ? `${Math.round((100 * figure.cache_hits) / looked)} %` : "–"],
    ["entries", figure.cache_entries ?? 0],
    ["size", `${megabytes(figure.cache_bytes ?? 0)} / ${megabytes(figure.cache_limit_bytes ?? 0)}`],
  ]);
  const phrases = live.phrases.map((phrase) => element("li", { textContent: `${phrase.text} (${phrase.voice}, ${phrase.count}×)` }));
  $("phrases").replaceChildren(...(phrases.length ? phrases : [element("li", { textContent: t("noPhrases") })]));
  const errors = live.errors.map((error) => element("li", { textContent: `${new Date(1000 * error.at).toLocaleTimeString(language)} ${error.code}: ${error.text}` }));
  $("errors").replaceChildren(...(errors.length ? errors : [element("li", { textContent: t("noErrors") })]));
  showPlots();
}

function showPlots() {
  const plots = [["queue", "plotQueue"], ["steps", "plotSteps"], ["memory", "plotMemory"], ["hits", "plotHits"]];
  if (!$("plots").children.length) {
    $("plots").replaceChildren(...plots.map(([name]) => {
      const canvas = element("canvas", { id: `plot-${name}` });
      canvas.setAttribute("role", "img");
      return element("figure", {}, canvas, element("figcaption"));
    }));
  }
  plots.forEach(([name, title], i) => {
    const figure = $("plots").children[i];
    const text = `${t(title)}: ${(history[name].at(-1) ?? 0).toFixed(0)}`;
    figure.lastElementChild.textContent = text;
    figure.firstElementChild.setAttribute("aria-label", text);
    drawPlot(figure.firstElementChild, history[name]);
  });
}

async function clear() {
  if (!(await ask(t("clearTitle"), t("clearText"), null))) return;
  try {
    const { removed } = await send("POST", "api/cache/clear");
    $("cleared").textContent = t("cleared", removed);
  } catch (error) {
    $("cleared").textContent = error.message;
  }
}

function showView(name) {
  for (const view of ["studio", "server"]) {
    $(`view-${view}`).hidden = view !== name;
    if (view === name) $(`tab-${view}`).setAttribute("aria-current", "page");
    else $(`tab-${view}`).removeAttribute("aria-current");
  }
  remember("view", name);
  showServer();
  showWave();
}

function showAll() {
  setConnection(connection);
  setSource(source);
  showRolled();
  showVoices();
  showServer();
  showWave();
}

// ---- begin

$("language").onchange = () => { remember("language", $("language").value); setLanguage($("language").value); };
$("tab-studio").onclick = () => showView("studio");
$("tab-server").onclick = () => showView("server");
$("roll").onclick = roll;
$("speak").onclick = speak;
$("stop").onclick = () => { stop(); $("said").textContent = t("stopped"); $("stop").disabled = true; };
$("seed").onchange = () => { const seed = Number($("seed").value); if (Number.isSafeInteger(seed) && seed >= 0) setSource({ seed }); };
$("keep").onsubmit = keep;
$("undo").querySelector("button").onclick = () => tried(undo);
$("import").onchange = () => tried(() => imported($("import").files[0]));
$("clear").onclick = clear;
window.addEventListener("resize", () => { showWave(); showServer(); });
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { showWave(); showServer(); });
setLanguage(recalled("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
showView(recalled("view") === "server" ? "server" : "studio");
poll();
setInterval(() => { if (!document.hidden && connection !== "away") loadState().catch(() => {}); }, STATE_MS);
