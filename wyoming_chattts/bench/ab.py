"""`bench ab`: a page for a blind comparison by ear of two configurations.

Each text is spoken by both; the page plays them in a random order with hidden labels, takes the
listener's choice by key, and at the end shows who chose what with a two-sided binomial test. The
page holds everything it needs and sends nothing.
"""

import argparse
import asyncio
import base64
import html
import io
import json
import tempfile
import wave
from pathlib import Path

from ..audio import CHANNELS, SAMPLE_WIDTH
from ..config import Config, load, parse_override, read_lines
from ..engine.base import SAMPLE_RATE
from ..errors import ConfigError
from ..offline import offline_speech
from ..speech import whole
from .report import Report, progress

_TEXTS = (
    "Good morning. The living room is twenty one degrees.",
    "客厅的灯已经打开，大门也关好了。",
    "The washing machine has finished, and rain is on its way.",
    "明天多云，最高温度二十五度，出门记得带伞。",
    "I have set a timer for ten minutes.",
    "好的，已经把living room的灯调到百分之五十。",
)


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Writes the page."""
    if report.out is None:
        raise ConfigError("bench ab: give --out DIR for the page")
    texts = read_lines(options.texts) if options.texts is not None else list(_TEXTS)
    changes = [options.a or [], options.b or []]
    if changes[0] == changes[1]:
        raise ConfigError(
            "bench ab: give --a and --b, settings that differ (--b engine.precision=fp32)"
        )
    names = [", ".join(change) or "as it is" for change in changes]
    spoken = [
        asyncio.run(_speak_all(_changed(config, folder, change), texts))
        for change in progress(changes, "configurations")
    ]
    pairs = [
        {"text": text, "a": a, "b": b}
        for text, a, b in zip(texts, spoken[0], spoken[1], strict=True)
    ]
    path = report.out / "ab.html"
    path.write_text(_page(names, pairs), encoding="utf-8")
    report.say(f"{path}: {len(texts)} texts, A is {names[0]}, B is {names[1]}")
    report.results["ab"] = {"page": path.name, "texts": len(texts), "a": names[0], "b": names[1]}


def _changed(config: Config, folder: Path, change: list[str]) -> Config:
    base = config.model_dump(mode="json")
    overrides = dict(map(parse_override, change))
    flat = {
        f"{s}.{k}": v for s, part in base.items() if isinstance(part, dict) for k, v in part.items()
    }
    return load(
        environ={}, overrides=flat | {"model.dir": str(folder), "cache.enabled": False} | overrides
    )


async def _speak_all(config: Config, texts: list[str]) -> list[str]:
    """Base64 WAV files of the texts."""
    files = []
    with tempfile.TemporaryDirectory() as data:
        # a loudness measured before must not tell the two apart
        apart = config.model_copy(update={"data_dir": data})
        async with offline_speech(apart) as (speech, voices):
            for text in texts:
                pcm = bytearray()

                async def take(part: bytes, into: bytearray = pcm) -> None:
                    into.extend(part)

                await speech.speak(whole(text), voices.default, take)
                files.append(_wav(bytes(pcm)))
    return files


def _wav(pcm: bytes) -> str:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setparams((CHANNELS, SAMPLE_WIDTH, SAMPLE_RATE, 0, "NONE", ""))
        out.writeframes(pcm)
    return base64.b64encode(buffer.getvalue()).decode()


def _page(names: list[str], pairs: list[dict[str, str]]) -> str:
    # "</" would end the script
    data = json.dumps({"names": names, "pairs": pairs}, ensure_ascii=False).replace("</", "<\\/")
    title = html.escape(f"Blind comparison of {len(pairs)} texts")
    return _TEMPLATE.replace("@TITLE@", title).replace("@DATA@", data)


_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 18px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 2rem auto; padding: 0 1rem; }
button { font: inherit; padding: .6rem 1.2rem; margin: .2rem; }
table { border-collapse: collapse; } td, th { border: 1px solid #8888; padding: .3rem .6rem; }
#text { font-size: 1.3rem; min-height: 4rem; }
</style></head><body>
<h1>@TITLE@</h1>
<main id="trial" aria-live="polite">
<p id="count"></p><p id="text"></p>
<p><button id="first">Play first (1)</button><button id="second">Play second (2)</button></p>
<p>Which sounds better?<br>
<button id="choose1">The first (←)</button><button id="same">No difference (↓)</button>
<button id="choose2">The second (→)</button></p></main>
<section id="result" hidden></section>
<script type="application/json" id="data">@DATA@</script>
<script>
const data = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const trials = data.pairs.map(p => ({...p, swapped: Math.random() < .5}))
  .map(t => [Math.random(), t]).sort((x, y) => x[0] - y[0]).map(x => x[1]);
let at = 0, audio = null;
const source = n => (n === 1) !== trials[at].swapped ? trials[at].a : trials[at].b;
function play(n) { if (audio) audio.pause();
  audio = new Audio("data:audio/wav;base64," + source(n)); audio.play().catch(() => {}); }
function show() { $("count").textContent = `${at + 1} of ${trials.length}`;
  $("text").textContent = trials[at].text; }
function choose(n) { if (at >= trials.length) return; if (audio) audio.pause();
  trials[at].choice = n === 0 ? "none" : (n === 1) !== trials[at].swapped ? "a" : "b";
  at += 1; at < trials.length ? show() : finish(); }
function binomial(k, n) { // two-sided, chance 1/2
  const p = [1]; for (let i = 1; i <= n; i++) p[i] = p[i - 1] * (n - i + 1) / i;
  const total = 2 ** n, limit = p[k] * (1 + 1e-9);
  return Math.min(1, p.filter(x => x <= limit).reduce((s, x) => s + x, 0) / total); }
function finish() { $("trial").hidden = true; const count = c => trials.filter(t => t.choice === c).length;
  const a = count("a"), b = count("b"), r = $("result"); r.hidden = false;
  const cell = (tag, text) => { const e = document.createElement(tag); e.textContent = text; return e; };
  const row = (tag, cells) => { const e = document.createElement("tr");
    cells.forEach(c => e.append(cell(tag, c))); return e; };
  const table = document.createElement("table");
  table.append(row("th", ["", "configuration", "preferred"]), row("td", ["A", data.names[0], a]),
    row("td", ["B", data.names[1], b]), row("td", ["", "no difference", count("none")]));
  r.append(cell("h2", "Result"), table,
    cell("p", `Two-sided binomial test over ${a + b} choices: p = ${binomial(a, a + b).toFixed(3)}`));
  const each = document.createElement("table"); each.append(row("th", ["text", "preferred"]));
  trials.forEach(t => each.append(row("td", [t.text, {a: "A", b: "B", none: "-"}[t.choice]])));
  r.append(cell("h2", "Each text"), each); }
$("first").onclick = () => play(1); $("second").onclick = () => play(2);
$("choose1").onclick = () => choose(1); $("choose2").onclick = () => choose(2);
$("same").onclick = () => choose(0);
addEventListener("keydown", e => { const f = {"1": () => play(1), "2": () => play(2),
  ArrowLeft: () => choose(1), ArrowRight: () => choose(2), ArrowDown: () => choose(0)}[e.key];
  if (f) { e.preventDefault(); f(); } });
show();
</script></body></html>
"""
