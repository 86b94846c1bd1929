"""The front end: a segment of text as written → what ChatTTS is to say.

replacements → clean → markup → normalize → character set → homophones. Pure functions of their
input; runs in the text thread. `VERSION` is part of the cache keys: it changes with any change of
a spoken form.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import ReplacementConfig
from ..engine.checkpoint import package_resource
from .acronyms import spell_acronyms
from .charset import CONTROL_TOKENS, Homophones, drop_tokens, to_charset
from .clean import clean
from .languages import foreign_language
from .markup import strip_markup, text_language
from .normalize import normalize

VERSION = "2"

_LATIN_WORD = re.compile(r"[\w'-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is to be said of a segment.

    `text` is empty if there is nothing to say. `language` is "zh" or "en", or another espeak-ng
    code where ChatTTS cannot say the text, which then is as it was written, without markup.
    `pause` is the mark that ends the segment: "。", "，" or "". `stages` pairs each stage's name
    with its result.
    """

    text: str
    language: str
    pause: str
    stages: tuple[tuple[str, str], ...] = ()

    @property
    def foreign(self) -> bool:
        """Whether ChatTTS cannot say it."""
        return self.language not in ("en", "zh")


class FrontEnd:
    """Holds what the stages share."""

    def __init__(
        self, *, control_tokens: bool = True, replacements: Sequence[ReplacementConfig] = ()
    ) -> None:
        self._keep = CONTROL_TOKENS if control_tokens else frozenset[str]()
        self._homophones = Homophones(package_resource("res/homophones_map.json"))
        self._replacements = [(_pattern(r), r.say, r.language) for r in replacements]

    def speak(self, text: str, default_language: str = "en") -> Spoken:
        """The spoken form of one segment."""
        replaced = self._replace(text, default_language)
        cleaned = drop_tokens(clean(replaced), self._keep)
        language = text_language(cleaned, default_language)
        plain = strip_markup(cleaned, language)
        stages = [("replacements", replaced), ("clean", cleaned), ("markup", plain)]
        if foreign := foreign_language(plain):
            return Spoken(" ".join(plain.split()), foreign, _pause(text), tuple(stages))
        normalized = normalize(plain, language)
        mapped = spell_acronyms(to_charset(normalized, self._keep))
        spoken = self._homophones(mapped)
        stages += [("normalize", normalized), ("charset", mapped), ("homophones", spoken)]
        return Spoken(spoken, language, _pause(text), tuple(stages))

    def warm_up(self) -> None:
        """Loads grammars and tables, so that the first request does not pay for it."""
        self.speak("二〇二六年一月二日，温度23.5°C。")
        self.speak("On January 2nd, 2026 it was 23.5°C.")

    def _replace(self, text: str, default_language: str) -> str:
        if not self._replacements:
            return text
        language = text_language(text, default_language)
        for pattern, say, only in self._replacements:
            if only is None or only == language:
                text = pattern.sub(say, text)
        return text


def _pattern(replacement: ReplacementConfig) -> re.Pattern[str]:
    if replacement.regex is not None:
        return re.compile(replacement.regex)
    word = replacement.word or ""
    escaped = re.escape(word)
    if _LATIN_WORD.fullmatch(word):
        # only as a word; Chinese characters beside it do not count as part of it
        escaped = rf"(?<![A-Za-z0-9_]){escaped}(?![A-Za-z0-9_])"
    return re.compile(escaped, re.IGNORECASE)


def _pause(text: str) -> str:
    last = text.rstrip(" \t*_`\"'”’）)]」』")[-1:]
    if last in "。！？.!?…\n" and last:
        return "。"
    return "，" if last and last in "，、；：,;:" else ""
