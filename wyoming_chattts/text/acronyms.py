"""Upper-case acronyms are spaced, so that ChatTTS spells them; shouting is read as words."""

import re

_SPOKEN_ACRONYMS = frozenset(
    "NASA NATO UNESCO UNICEF COVID LASER RADAR PIN RAM ROM SIM WIFI ASAP AIDS OPEC GIF JPEG LAN "
    "WAN ZIP CAPTCHA IKEA SONOS HEPA".split()
)
_TOKEN = re.compile(r"\[[a-z_0-9]+\]")
_ACRONYM = re.compile(r"(?<![A-Za-z])[A-Z]{2,6}(?:s(?![A-Za-z]))?(?![A-Za-z])")
_CAPITALS = re.compile(r"(?<![A-Za-z])[A-Z]{4,}(?![A-Za-z])")


def spell_acronyms(text: str) -> str:
    """GPU → G P U, so that it is spelled; words that are only written in capitals are not."""
    words = _TOKEN.sub("", text)
    shouted = len(_CAPITALS.findall(words)) >= 2 and not re.search(r"[a-z]{2}", words)
    if shouted:
        return text.lower()
    return _ACRONYM.sub(_spell, text)


def _spell(m: re.Match[str]) -> str:
    word = m.group()
    plural = word.endswith("s")
    letters = word[:-1] if plural else word
    if letters in _SPOKEN_ACRONYMS:
        return word.lower()
    return " ".join(letters) + ("s" if plural else "")
