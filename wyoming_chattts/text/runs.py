"""Cuts a mixed sentence into runs of one language.

Words decide: Chinese characters are Chinese, Latin words with a lower-case letter are English.
Numbers, units, marks and acronyms belong to the run before them; at the start of a text to the
one behind.
"""

import re
from dataclasses import dataclass

_WORD = re.compile(
    # "v2.1" and "No. 5" are numbers with a sign, in either language
    r"(?P<token>\[[a-z_0-9]+\]|(?<![A-Za-z])(?:v(?=\d)|No\.(?=\s?\d)))|(?P<zh>[⺀-鿿豈-﫿]+)|(?P<en>(?<![\dA-Za-z])(?=[A-Z]{0,30}[a-z])[A-Za-z][A-Za-z'’]*)"
)
_NUMBER_BEHIND = re.compile(r"\s?\d")
# lower-case letters that are units rather than words
_UNITS = frozenset(
    "m s h g l cm mm km kg mg ml lx ppm ppb dB hPa kPa km/h mph kWh Wh kW mW Hz kHz MHz GHz min am "
    "pm px ft lb oz in GB MB KB TB Mbps rpm bpm mAh psi Pa th st nd rd x".split()
)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch of text in one language, "zh" or "en"."""

    language: str
    text: str


def language_runs(text: str, default: str = "en") -> list[Run]:
    """The runs of a text, which joined give the text again."""
    runs: list[Run] = []
    start = 0
    current: str | None = None
    main = main_language(text, default)
    for match in _WORD.finditer(text):
        language = "zh" if match.lastgroup == "zh" else "en"
        if match.lastgroup == "token" or (language == "en" and match.group() in _UNITS):
            continue
        if current is not None and language != current:
            runs.append(Run(current, text[start : match.start()]))
            start = match.start()
        current = language
        if language == "en" and main == "zh" and _NUMBER_BEHIND.match(text, match.end()):
            # the number of a name (iPhone15) is read in the language of the sentence
            runs.append(Run("en", text[start : match.end()]))
            start, current = match.end(), "zh"
    if start < len(text):
        runs.append(Run(current or default, text[start:]))
    return runs


def main_language(text: str, default: str = "en") -> str:
    """The language that most of a text is in; a Chinese character weighs as much as a word, and
    where both weigh the same, the first decides."""
    chinese = len(re.findall(r"[⺀-鿿豈-﫿]", text))
    english = len(re.findall(r"(?<![A-Za-z])(?=[A-Z]{0,30}[a-z])[A-Za-z]+", text))
    if chinese == english == 0:
        return default
    if chinese == english:
        first = re.search(r"[A-Za-z⺀-鿿豈-﫿]", text)
        return "en" if first is not None and first.group().isascii() else "zh"
    return "zh" if chinese > english else "en"
