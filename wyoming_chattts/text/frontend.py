"""The front end: a segment of text as written → what ChatTTS is to say.

clean → markup → normalize → character set → homophones. Pure functions of their input; runs in the
text thread. `VERSION` is part of the cache keys: it changes with any change of a spoken form.
"""

from dataclasses import dataclass

from ..engine.checkpoint import package_resource
from .charset import CONTROL_TOKENS, Homophones, drop_tokens, to_charset
from .clean import clean
from .markup import strip_markup, text_language
from .normalize import normalize

VERSION = "1"


@dataclass(frozen=True, slots=True)
class Spoken:
    """What is to be said of a segment.

    `text` is empty if there is nothing to say. `pause` is the mark that ends the segment: "。",
    "，" or "". `stages` pairs each stage's name with its result.
    """

    text: str
    language: str
    pause: str
    stages: tuple[tuple[str, str], ...] = ()


class FrontEnd:
    """Holds what the stages share."""

    def __init__(self, *, control_tokens: bool = True) -> None:
        self._keep = CONTROL_TOKENS if control_tokens else frozenset[str]()
        self._homophones = Homophones(package_resource("res/homophones_map.json"))

    def speak(self, text: str, default_language: str = "en") -> Spoken:
        """The spoken form of one segment."""
        cleaned = drop_tokens(clean(text), self._keep)
        language = text_language(cleaned, default_language)
        plain = strip_markup(cleaned, language)
        normalized = normalize(plain, language)
        mapped = to_charset(normalized, self._keep)
        spoken = self._homophones(mapped) if language == "zh" else mapped
        stages = (
            ("clean", cleaned),
            ("markup", plain),
            ("normalize", normalized),
            ("charset", mapped),
            ("homophones", spoken),
        )
        return Spoken(spoken, language, _pause(text), stages)

    def warm_up(self) -> None:
        """Loads grammars and tables, so that the first request does not pay for it."""
        self.speak("二〇二六年一月二日，温度23.5°C。")
        self.speak("On January 2nd, 2026 it was 23.5°C.")


def _pause(text: str) -> str:
    last = text.rstrip(" \t*_`\"'”’）)]」』")[-1:]
    if last in "。！？.!?…\n" and last:
        return "。"
    return "，" if last and last in "，、；：,;:" else ""
