"""`bench text`: how long the front end takes, by kind of text."""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

from ..config import Config
from ..text.frontend import FrontEnd
from ..text.segment import Segmenter
from .report import Report, median_ms, progress

_KINDS = {
    "English sentence": "The living room light is on, and the door is closed. ",
    "Chinese sentence": "客厅的灯已经打开，大门也关好了。",
    "numbers, English": "It is 21.5°C at 10:30 PM, 45% humidity, and it costs $1,234.56. ",
    "numbers, Chinese": "现在是14:30，客厅温度23.5°C，湿度45%，今天用电5kWh。",
    "mixed": "把living room的灯调到50%，然后播放Taylor Swift的歌。",
    "markdown": "**Done!** The *lights* are `off`, see [the log](https://example.com/log). ",
}
_LONG = 5000


def measure(config: Config, folder: Path, options: argparse.Namespace, report: Report) -> None:
    """Prints the table."""
    front_end = FrontEnd()
    begin = time.perf_counter()
    front_end.warm_up()
    report.say(f"First use (grammars and tables): {1000 * (time.perf_counter() - begin):.0f} ms.")
    report.say()
    times = 5 if options.quick else 25
    rows: list[list[Any]] = []
    for kind, text in progress(list(_KINDS.items()), "kinds"):
        long = (text * (_LONG // len(text) + 1))[:_LONG]

        def speak_all(source: str = long) -> None:
            segmenter = Segmenter()
            for segment in [*segmenter.feed(source), *segmenter.finish()]:
                front_end.speak(segment)

        rows.append(
            [
                kind,
                len(text),
                median_ms(partial(front_end.speak, text), times),
                median_ms(speak_all, max(3, times // 5)),
                median_ms(partial(_last_character, text), times),
            ]
        )
    report.table(
        "kinds",
        [
            "text",
            "characters",
            "a sentence ms",
            f"{_LONG} characters ms",
            "last character to segment ms",
        ],
        rows,
    )

    def draw(axes: Any) -> None:
        axes.barh([row[0] for row in rows], [row[3] for row in rows])
        axes.set_xlabel(f"{_LONG} characters, ms")
        axes.invert_yaxis()

    report.plot(draw)


def _last_character(text: str) -> None:
    """A segment whose last character has just arrived."""
    segmenter = Segmenter(first_segment_chars=400)
    segmenter.feed(text.rstrip()[:-1])
    segmenter.feed(text.rstrip()[-1:] + " ")
