"""First stage: characters that carry no speech go, and the rest comes into one form.

NFKC (full-width digits and letters to plain ones), zero-width and control characters, lone
surrogates, HTML and SSML tags, entities.
"""

import html
import re
import unicodedata

_TAG = re.compile(
    r"</?[A-Za-z][A-Za-z0-9:-]{0,30}(?:\s[^<>]{0,500})?/?>|<!--[^<>]{0,500}-->|<[?!][^<>]{0,200}>"
)
_BLOCK_TAG = re.compile(r"^</?(?:p|br|div|li|ul|ol|h[1-6]|tr|s|break)\b", re.IGNORECASE)
_RUN = re.compile(r"([^\w\s])\1{3,}")
"""A mark repeated more than three times says no more than three of it."""
_KEPT_CONTROLS = frozenset("\n\t")
# NFKC would turn these into letters that are then misread, or lose what they mean
_KEPT = str.maketrans({"℃": "°C", "℉": "°F", "㎡": "m²", "㎥": "m³", "™": "", "®": "", "©": ""})
_PROTECTED = "²³¹½⅓⅔¼¾⅕⅛…"


def clean(text: str) -> str:
    """The text without what cannot be spoken, in NFKC form."""
    text = text.translate(_KEPT)
    if "<" in text:
        text = _TAG.sub(_tag, text)
    if "&" in text:
        text = html.unescape(text)
    if text.isascii():
        normalized = text
    else:
        normalized = "".join(
            char if char in _PROTECTED else unicodedata.normalize("NFKC", char) for char in text
        )
        normalized = unicodedata.normalize("NFC", normalized)
    return _RUN.sub(r"\1\1\1", "".join(map(_character, normalized)))


def _tag(match: re.Match[str]) -> str:
    return "\n" if _BLOCK_TAG.match(match.group()) else ""


def _character(char: str) -> str:
    if char in _KEPT_CONTROLS:
        return char
    category = unicodedata.category(char)
    if category == "Zs":
        return " "
    if category in ("Zl", "Zp"):
        return "\n"
    return "" if category[0] == "C" else char
