"""SSML → plain text with control tokens, as far as ChatTTS can follow it.

`break`, `say-as`, `sub`, `p`, `s` and the rate of `prosody` are followed; other tags are stripped.
What is not well-formed, or brings a DTD (and with it entities), is read as text. The document is
taken as a stream of events, so that its depth costs nothing.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

from .numbers import en_digits, en_number, en_ordinal, zh_digits, zh_integer, zh_number
from .runs import main_language

_DTD = re.compile(r"<!(?:DOCTYPE|ENTITY)", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*>")
_RATES = {"x-slow": 1, "slow": 3, "medium": 5, "default": 5, "fast": 7, "x-fast": 9}
_TIME = re.compile(r"\s*\+?(\d{1,6}(?:\.\d{1,3})?)\s*(ms|s)\s*")
_LONG_BREAK_MS = 400
_STRENGTHS = {"none": "", "x-weak": "", "weak": ", ", "medium": " [uv_break] "}
_SHORT, _LONG = " [uv_break] ", " [lbreak] "


@dataclass(frozen=True, slots=True)
class Document:
    """What a document says, and the ChatTTS speed (0-9) that its outermost rate asks for."""

    text: str
    speed: int | None = None


def read_ssml(source: str) -> Document:
    """The text of an SSML document. Never raises: what is not SSML is read as text."""
    if not source.lstrip().startswith("<"):
        return Document(source)
    if _DTD.search(source):
        return Document(_TAG.sub(" ", source))
    reader = _Reader(main_language(_TAG.sub(" ", source)))
    parser = ET.XMLParser(target=reader)
    try:
        parser.feed(source.encode("utf-8", "replace"))
        parser.close()
    except (ET.ParseError, ValueError):
        return Document(_TAG.sub(" ", source))
    return Document("".join(reader.parts), reader.speed)


@dataclass(slots=True)
class _Reader:
    """Takes the parser's events. `hidden` counts open elements whose text is replaced."""

    language: str
    parts: list[str] = field(default_factory=list)
    speed: int | None = None
    _open: list[tuple[str, str]] = field(default_factory=list)
    _say_as: list[str] = field(default_factory=list)
    _hidden: int = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2].lower()
        kind = ""
        if name == "break":
            self.parts.append(_break(attributes))
        elif name == "say-as":
            kind = attributes.get("interpret-as", "").lower()
            if kind == "date":
                kind = f"date {attributes.get('format', '')}"
            self._say_as.append("")
        elif name == "sub" and "alias" in attributes:
            if not self._hidden:
                self.data(attributes["alias"])
            self._hidden += 1
            kind = "hidden"
        elif name in ("audio", "mark", "metadata", "meta", "desc", "phoneme") and name != "phoneme":
            self._hidden += 1
            kind = "hidden"
        elif name == "prosody" and self.speed is None:
            self.speed = _rate(attributes.get("rate", ""))
        elif name in ("p", "s"):
            self.parts.append("\n")
        self._open.append((name, kind))

    def end(self, _tag: str) -> None:
        name, kind = self._open.pop()
        if kind == "hidden":
            self._hidden -= 1
        elif name == "say-as":
            spoken = _say_as(self._say_as.pop().strip(), kind, self.language)
            self.data(f" {spoken} " if self.language == "en" else spoken)
        elif name in ("p", "s"):
            self.parts.append("\n")

    def data(self, text: str) -> None:
        if self._hidden:
            return
        if self._say_as:
            self._say_as[-1] += text
        else:
            self.parts.append(text)

    def close(self) -> None:
        """The document has ended."""


def _break(attributes: dict[str, str]) -> str:
    if match := _TIME.fullmatch(attributes.get("time", "")):
        milliseconds = float(match[1]) * (1000 if match[2] == "s" else 1)
        if milliseconds == 0:
            return " "
        return _LONG if milliseconds >= _LONG_BREAK_MS else _SHORT
    return _STRENGTHS.get(attributes.get("strength", "medium"), _LONG)


def _rate(text: str) -> int | None:
    text = text.strip().lower()
    if text in _RATES:
        return _RATES[text]
    match = re.fullmatch(r"([+-]?)(\d{1,4}(?:\.\d{1,3})?)(%?)", text)
    if not match:
        return None
    value = float(match[2])
    if match[3]:
        factor = 1 + float(f"{match[1]}{value}") / 100 if match[1] else value / 100
    else:
        factor = value
    # a step of ChatTTS's speed is about a tenth
    return max(0, min(9, round(5 + (factor - 1) * 10)))


def _say_as(text: str, kind: str, language: str) -> str:
    chinese = language == "zh"
    number = re.fullmatch(r"[+-]?\d{1,15}(?:,\d{3})*(?:\.\d{1,15})?", text)
    whole = re.fullmatch(r"\d{1,12}", text)
    if kind in ("characters", "spell-out", "verbatim"):
        said = (_character(char, chinese) for char in text if not char.isspace())
        return ("" if chinese else " ").join(said)
    if kind in ("digits",):
        return zh_digits(text) if chinese else en_digits(text)
    if kind in ("telephone", "phone"):
        groups = re.findall(r"\d+", text)
        if chinese:
            return "".join(zh_digits(group, one="幺") for group in groups)
        return ", ".join(en_digits(group) for group in groups)
    if kind in ("cardinal", "number") and number:
        return zh_number(text) if chinese else en_number(text)
    if kind == "ordinal" and whole:
        return f"第{zh_integer(text)}" if chinese else en_ordinal(text)
    if kind.startswith("date"):
        return _date(text, kind.removeprefix("date").strip())
    # times and everything else: the front end knows how they are read
    return text


def _character(char: str, chinese: bool) -> str:
    if char.isdecimal():
        return zh_digits(char) if chinese else en_digits(char)
    return char.upper()


def _date(text: str, order: str) -> str:
    """A date in the order that `format` names (mdy, dmy, ymd) as year-month-day, which the front
    end reads."""
    numbers = re.findall(r"\d{1,4}", text)
    letters = [letter for letter in order.lower() if letter in "dmy"]
    if len(numbers) != 3 or sorted(letters) != ["d", "m", "y"]:
        return text
    parts = dict(zip(letters, numbers, strict=True))
    return f"{parts['y'].zfill(4)}-{parts['m'].zfill(2)}-{parts['d'].zfill(2)}"
