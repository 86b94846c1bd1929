"""Last stages: ChatTTS's character set, and its homophone table.

ChatTTS reads Chinese characters, Latin letters and `，。、,.` only (`norm.py` of its package);
everything else is mapped to one of these or dropped. The homophone table replaces characters that
ChatTTS misreads by others of the same sound.
"""

import json
import re
from functools import cache
from pathlib import Path

from opencc import OpenCC

from ..engine.layout import CONTROL_TOKENS as ALL_TOKENS
from .languages import plain_letters

CONTROL_TOKENS = frozenset({"laugh", "uv_break", "lbreak"})
"""Paralinguistic tokens, the only ones that a text may contain."""

_TOKEN = re.compile("(" + "|".join(re.escape(token) for token in ALL_TOKENS) + ")", re.IGNORECASE)
_HANZI = "一-鿿"
_PAUSES = str.maketrans(
    {
        **dict.fromkeys("：；（）【】『』「」《》〈〉－—–―~～·•|", "，"),
        **dict.fromkeys("！？｡", "。"),
        **dict.fromkeys(":;()[]{}<>", ","),
        **dict.fromkeys("!?", "."),
        "…": "。",
        "\n": "，",
        "〇": "零",
    }
)
_HYPHEN = re.compile(r"(?<=[A-Za-z])[-/_](?=[A-Za-z])")
_DROPPED = re.compile(rf"[^{_HANZI}A-Za-z，。、,. ]")
_MARKS = re.compile(r"\s*([，。、,.](?:[，。、,.\s]*[，。、,.])?)\s*")
_SPACES = re.compile(r"\s+")
_SPACE_IN_CHINESE = re.compile(rf"(?<=[{_HANZI}]) (?=[{_HANZI}])")
_SAYABLE = re.compile(rf"[{_HANZI}A-Za-z]")


def drop_tokens(text: str, keep: frozenset[str] = CONTROL_TOKENS) -> str:
    """The text without control tokens of ChatTTS but those named in `keep`, which become lower
    case. None of the others may reach a prompt from a text."""
    if "[" not in text:
        return text
    return _TOKEN.sub(lambda m: m[0].lower() if m[0][1:-1].lower() in keep else " ", text)


def to_charset(text: str, keep: frozenset[str] = CONTROL_TOKENS) -> str:
    """A spoken form in ChatTTS's character set, with the control tokens named in `keep`.

    Empty if nothing is left to say.
    """
    parts = _TOKEN.split(drop_tokens(text, keep))
    parts[::2] = map(_characters, parts[::2])
    return _tidy("".join(parts))


def _characters(text: str) -> str:
    if not text.isascii():
        text = plain_letters(simplified(text))
    text = text.translate(_PAUSES)
    text = _HYPHEN.sub(" ", text)
    return _DROPPED.sub("", text)


def _tidy(text: str) -> str:
    """One mark where several stand, in the script of the word before it; single spaces."""
    text = _SPACE_IN_CHINESE.sub("", _SPACES.sub(" ", text))
    parts = _MARKS.split(text)
    out = parts[0].lstrip()
    for marks, following in zip(parts[1::2], parts[2::2], strict=True):
        if out:
            out += _mark(marks, out) + following
        else:
            out = following
    out = out.strip().rstrip(",，、").rstrip()
    return out if _SAYABLE.search(_TOKEN.sub("", out)) else ""


def _mark(marks: str, before: str) -> str:
    final = "。" in marks or "." in marks
    if "A" <= before[-1].upper() <= "Z":
        return ". " if final else ", "
    return "。" if final else "、" if marks.strip() == "、" else "，"


def simplified(text: str) -> str:
    """Traditional characters to simplified ones, phrase by phrase."""
    return str(_converter().convert(text))


@cache
def _converter() -> OpenCC:
    return OpenCC("t2s")


class Homophones:
    """The ChatTTS package's table of characters that it misreads."""

    def __init__(self, file: Path) -> None:
        table = json.loads(file.read_text(encoding="utf-8"))
        self._table = str.maketrans(table)

    def __call__(self, text: str) -> str:
        """The text with each listed character replaced by its homophone."""
        return text.translate(self._table)
