"""Which language a segment is in, where it is neither Chinese nor English.

The script tells most of them apart; a few that share the Latin script are told by their function
words, of which a sentence has several. What is not recognised counts as English.
"""

import re
import unicodedata

_SCRIPTS = (
    ("ja", re.compile(r"[\u3041-\u30ff\uff66-\uff9d]")),
    ("ko", re.compile(r"[\u1100-\u11ff\uac00-\ud7af]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
    ("ar", re.compile(r"[\u0600-\u06ff]")),
    ("he", re.compile(r"[\u0590-\u05ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("th", re.compile(r"[\u0e00-\u0e7f]")),
    ("el", re.compile(r"[\u0370-\u03ff]")),
)
_FUNCTION_WORDS = {
    "de": "der die das und ist nicht ein eine ich sie wir es mit auf den dem zu von für im am hat "
    "sind wird auch bei nach aus guten morgen heute",
    "fr": "le la les et est une des du dans pour que qui pas sur avec au ce cette il elle nous vous "
    "sont plus bonjour aujourd hui de en",
    "es": "el los las y es una del en por para que con no se su al lo como está hay hoy buenos días "
    "la de",
    "it": "il lo gli e è una del della di che per con non sono nel alla questo oggi buongiorno la",
    "nl": "de het een en is niet van dat op te met voor zijn wordt ook aan goedemorgen vandaag",
    "pt": "o os as e é uma do da em por para que com não se ao hoje bom dia de",
}
_ENGLISH = frozenset(
    "the a an and is are to of in on it you i for with at be this that not was will have has your "
    "my we they he she from by or as but if good morning today no die do me so am all".split()
)
_SETS = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_MIN_WORDS = 2
_WORD = re.compile(r"[^\W\d_]+")


def foreign_language(text: str) -> str | None:
    """An espeak-ng language code if most of a text is in a language that ChatTTS cannot speak."""
    letters = sum(char.isalpha() for char in text)
    if not letters:
        return None
    for language, script in _SCRIPTS:
        # kana mark Japanese even where most characters are Chinese ones
        share = 0.1 if language == "ja" else 0.5
        if len(script.findall(text)) > share * letters:
            return language
    if text.isascii() and letters < 8:
        return None
    # single letters are names of things as often as words
    words = {word.lower() for word in _WORD.findall(text) if len(word) > 1}
    english = len(words & _ENGLISH)
    scores = {language: len(words & known) for language, known in _SETS.items()}
    best = max(scores, key=lambda language: scores[language])
    if scores[best] >= _MIN_WORDS and scores[best] > english:
        return best
    return None


def plain_letters(text: str) -> str:
    """Latin letters without marks (café → cafe, Straße → Strasse); Greek ones by name."""
    return "".join(map(_plain, text))


_SPECIAL = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L",
     "đ": "d", "ð": "d", "þ": "th", "ı": "i"}
)  # fmt: skip


def _plain(char: str) -> str:
    if char.isascii() or char >= "\u2e80":
        return char
    decomposed = unicodedata.normalize("NFKD", char.translate(_SPECIAL))
    kept = "".join(c for c in decomposed if not unicodedata.combining(c))
    if kept and kept.isascii():
        return kept
    name = unicodedata.name(char, "")
    if name.startswith("GREEK") and "LETTER" in name:
        return f" {name.split('LETTER ')[1].split()[0].lower()} "
    return char
