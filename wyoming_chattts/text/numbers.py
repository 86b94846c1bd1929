"""Numbers as words, Chinese and English.

English cardinals, ordinals and years come from num2words; Chinese ones are a few lines, which no
library does with 两 and 幺 the way they are said.
"""

import re

from num2words import num2words

_ZH_DIGITS = "零一二三四五六七八九"
_ZH_UNITS = ("", "十", "百", "千")
_ZH_GROUPS = ("", "万", "亿", "万亿")
_MAX_DIGITS = 15
"""A longer number is read digit by digit."""


def zh_digits(text: str, *, one: str = "一") -> str:
    """Each digit by itself; `one` is 幺 where numbers are called out."""
    return "".join(_ZH_DIGITS[int(c)] if c in "023456789" else one for c in text if c.isdecimal())


def zh_integer(text: str) -> str:
    """A whole number: 1234 → 一千二百三十四."""
    digits = text.lstrip("0")
    if not digits:
        return "零"
    if len(digits) > _MAX_DIGITS:
        return zh_digits(text)
    groups = []
    while digits:
        digits, group = digits[:-4], digits[-4:]
        groups.append(group)
    words = ""
    for i in range(len(groups) - 1, -1, -1):
        group = groups[i].zfill(4) if words else groups[i]
        part = _zh_group(group)
        if part:
            # a gap of zeros between groups is said once
            if words and not words.endswith("零") and group.startswith("0"):
                words += "零"
            words += part + _ZH_GROUPS[i]
    words = words.rstrip("零")
    return words[1:] if words.startswith("一十") else words


def _zh_group(group: str) -> str:
    words = ""
    for i, char in enumerate(group):
        if char != "0":
            words += _ZH_DIGITS[int(char)] + _ZH_UNITS[len(group) - 1 - i]
        elif words and not words.endswith("零"):
            words += "零"
    return words.rstrip("零")


def zh_number(text: str, minus: str = "负") -> str:
    """A number with sign, thousands separators and decimals: -1,234.5 → 负一千二百三十四点五."""
    sign, whole, fraction = _parts(text)
    words = (minus if sign else "") + zh_integer(whole or "0")
    return f"{words}点{zh_digits(fraction)}" if fraction else words


def zh_quantity(text: str) -> str:
    """A number before a measure word: 2 is 两."""
    return "两" if text == "2" else zh_number(text)


def en_digits(text: str) -> str:
    """Each digit by itself: 555 → five five five."""
    return " ".join(_words(num2words(int(c))) for c in text if c.isdecimal())


def en_integer(text: str) -> str:
    """A whole number: 1234 → one thousand two hundred and thirty four."""
    if len(text) > _MAX_DIGITS or (len(text) > 1 and text.startswith("0")):
        return en_digits(text)
    return _words(num2words(int(text)))


def en_number(text: str) -> str:
    """A number with sign, thousands separators and decimals."""
    sign, whole, fraction = _parts(text)
    words = ("minus " if sign else "") + (en_integer(whole) if whole else "")
    if fraction:
        words += f" point {en_digits(fraction)}"
    return words.strip()


def en_ordinal(text: str) -> str:
    """21 → twenty first."""
    return _words(num2words(int(text), to="ordinal"))


def en_year(text: str) -> str:
    """2026 → twenty twenty six."""
    return _words(num2words(int(text), to="year"))


def is_one(text: str) -> bool:
    """Whether an English noun after this number is singular."""
    return text.lstrip("+-−") in ("1", "1.0")


def _parts(text: str) -> tuple[bool, str, str]:
    text = text.replace(",", "").replace("，", "").strip()
    negative = text[:1] in ("-", "−", "–")
    whole, _, fraction = text.lstrip("+-−–").partition(".")
    return negative, whole, fraction


def _words(text: str) -> str:
    return re.sub(r"[-,]", " ", text).replace("  ", " ")


_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_ROMAN_FORM = re.compile(r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})")


def roman(text: str) -> int | None:
    """Value of a well-formed Roman numeral, or None."""
    if not text or not _ROMAN_FORM.fullmatch(text):
        return None
    total = 0
    for char, following in zip(text, [*text[1:], ""], strict=True):
        value = _ROMAN[char]
        total += -value if following and _ROMAN[following] > value else value
    return total
