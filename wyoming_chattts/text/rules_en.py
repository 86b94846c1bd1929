"""Rules for English text that run before wetext: kinds of numbers that it reads wrong, titles,
symbols, contractions, acronyms.

Each rule is a pattern and what is said for it. Patterns are bounded, so that time stays linear.
"""

import re
from collections.abc import Callable

from .numbers import (
    en_digits,
    en_integer,
    en_number,
    en_ordinal,
    en_year,
    is_one,
    roman,
)
from .units import PER_UNIT_PATTERN, TEMPERATURES, UNIT_PATTERN, UNITS, canonical

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

_NUMBER = r"\d{1,15}(?:,\d{3}){0,5}(?:\.\d{1,15})?"
_SIGNED = rf"(?:(?<![\d.A-Za-z)])[-−–])?{_NUMBER}"
_TO = r"\s?(?:-|–|—|~|to)\s?"
_MONTHS = (
    "January February March April May June July August September October November December".split()
)
_SHORT_MONTHS = {m[:3]: m for m in _MONTHS} | {"Sept": "September"}
_MONTH = "|".join(sorted([*_MONTHS, *_SHORT_MONTHS], key=len, reverse=True))
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "US$": ("U S dollar", "U S dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yuan", "yuan", "", ""),
    "￥": ("yuan", "yuan", "", ""),
}
_CURRENCY = "|".join(re.escape(c) for c in sorted(_CURRENCIES, key=len, reverse=True))
_TITLES = {
    "Dr": "Doctor", "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor",
    "Gen": "General", "Capt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant", "Rev": "Reverend",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Hon": "Honorable",
    "Mt": "Mount", "Ft": "Fort",
}  # fmt: skip
_ABBREVIATIONS = {
    "e.g.": "for example", "i.e.": "that is", "etc.": "et cetera", "vs.": "versus",
    "approx.": "approximately", "dept.": "department", "est.": "estimated", "min.": "minimum",
    "max.": "maximum", "temp.": "temperature", "avg.": "average", "Inc.": "Incorporated",
    "Ltd.": "Limited", "Corp.": "Corporation", "Jr.": "Junior", "Sr.": "Senior",
    "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "w/o": "without", "w/": "with",
    "Mon.": "Monday", "Tue.": "Tuesday", "Wed.": "Wednesday", "Thu.": "Thursday",
    "Fri.": "Friday", "Sat.": "Saturday", "Sun.": "Sunday",
}  # fmt: skip
_CONTRACTIONS: tuple[tuple[str, str], ...] = (
    (r"\bwon't\b", "will not"), (r"\bcan't\b", "can not"), (r"\bshan't\b", "shall not"),
    (r"\bain't\b", "is not"), (r"\blet's\b", "let us"), (r"\by'all\b", "you all"),
    (r"\bo'clock\b", "o clock"), (r"\bma'am\b", "mam"),
    (r"(?<=[a-z])n't\b", " not"), (r"(?<=[a-z])'ll\b", " will"), (r"(?<=[a-z])'re\b", " are"),
    (r"(?<=[a-z])'ve\b", " have"), (r"\bI'm\b", "I am"), (r"\bI'd\b", "I would"),
    (r"\b(you|he|she|we|they|it|that|who)'d\b", r"\1 would"),
    (r"\b(it|that|what|there|here|he|she|who|where|how|when|why|everything|something)'s\b", r"\1 is"),
    (r"'em\b", "them"), (r"(?<=[A-Za-z])'(?=[A-Za-z])", ""), (r"(?<=s)'(?=\s|$)", ""),
)  # fmt: skip
_CONTRACTION_RULES = tuple((re.compile(p, re.IGNORECASE), w) for p, w in _CONTRACTIONS)
_FRACTION_NAMES = {"2": ("half", "halves"), "4": ("quarter", "quarters")}
_UNICODE_FRACTIONS = {
    "½": "1/2",
    "⅓": "1/3",
    "⅔": "2/3",
    "¼": "1/4",
    "¾": "3/4",
    "⅕": "1/5",
    "⅛": "1/8",
}
_NUMBERED = (
    r"(?:Chapter|Part|Act|Scene|Volume|Vol\.|Section|Book|War|Type|Phase|Level|Season|Episode|Class|"
    r"Title|Article|Appendix|Stage|Grade|Schedule|Bowl|Final Fantasy|Figure|Table|Mark|Version)"
)
_REGNAL = (
    r"(?:King|Queen|Pope|Henry|Louis|Elizabeth|Charles|George|Edward|William|James|Richard|Philip|"
    r"John|Paul|Pius|Benedict|Francis|Frederick|Wilhelm|Napoleon|Catherine|Ivan|Peter|Leo)"
)


def _name(forms: tuple[str, str, str], number: str) -> str:
    return forms[1] if is_one(number) else forms[2]


def _date_words(month: str, day: str, year: str | None) -> str:
    words = f"{month} {en_ordinal(day)}"
    return f"{words}, {en_year(year)}" if year else words


def _iso_date(m: re.Match[str]) -> str:
    month, day = int(m["month"]), int(m["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return m.group()
    return _date_words(_MONTHS[month - 1], m["day"], m["year"])


def _month_date(m: re.Match[str]) -> str:
    if not 1 <= int(m["day"]) <= 31:
        return m.group()
    month = _SHORT_MONTHS.get(m["month"], m["month"])
    if m.groupdict().get("of"):
        year = f" {en_year(m['year'])}" if m["year"] else ""
        return f"{en_ordinal(m['day'])} of {month}{year}"
    if last := m.groupdict().get("last"):
        return _date_words(month, m["day"], None) + " to " + en_ordinal(last)
    return _date_words(month, m["day"], m["year"])


def _clock(hour: str, minute: str, half: str) -> str:
    words = en_integer(str(int(hour)))
    if int(minute):
        words += (
            f" oh {en_integer(minute[1])}" if minute.startswith("0") else f" {en_integer(minute)}"
        )
    elif not half:
        words += " hundred hours" if int(hour) > 12 else " o clock"
    return words


def _half(text: str | None) -> str:
    return f" {text.upper().replace('.', '')}" if text else ""


def _time(m: re.Match[str]) -> str:
    if int(m["hour"]) > 24 or int(m["minute"]) > 59:
        return f"{en_integer(m['hour'])} to {en_integer(m['minute'])}"
    words = _clock(m["hour"], m["minute"], m["half"] or "")
    if m["second"]:
        words += f" and {en_number(str(int(m['second'])))} seconds"
    return words + _half(m["half"])


def _time_range(m: re.Match[str]) -> str:
    first = _clock(m["h1"], m["m1"] or "00", "x") + _half(m["half1"])
    return f"{first} to {_clock(m['h2'], m['m2'] or '00', 'x')}{_half(m['half'])}"


def _whole_hour(m: re.Match[str]) -> str:
    return f"{en_integer(m['hour'])}{_half(m['half'])}"


def _phone(m: re.Match[str]) -> str:
    groups = re.findall(r"\d+", m.group())
    return ("plus " if "+" in m.group() else "") + ", ".join(en_digits(g) for g in groups)


def _dotted(m: re.Match[str]) -> str:
    return " dot ".join(en_digits(part) for part in m.group().split("."))


def _version(m: re.Match[str]) -> str:
    lead = "version " if m["v"].strip().lower() == "v" else m["v"]
    return lead + " point ".join(en_integer(part) for part in m["number"].split("."))


def _temperature(m: re.Match[str]) -> str:
    low = f"{en_number(m['low'])} to " if m["low"] else ""
    return f"{low}{en_number(m['value'])} {_name(TEMPERATURES[m['scale'] or ''], m['value'])} "


def _percent(m: re.Match[str]) -> str:
    low = f"{en_number(m['low'])} to " if m["low"] else ""
    return f"{low}{en_number(m['value'])} {'per mille' if m['sign'] == '‰' else 'percent'}"


def _money(m: re.Match[str]) -> str:
    one, many, cent, cents = _CURRENCIES[m["currency"]]
    low = f"{en_number(m['low'])} to " if m["low"] else ""
    value = m["value"].replace(",", "")
    sign = "minus " if m["minus"] else ""
    if m["scale"]:
        return f"{sign}{low}{en_number(value)} {m['scale']} {many}"
    whole, _, fraction = value.partition(".")
    if len(fraction) != 2 or not cent or low:
        return f"{sign}{low}{en_number(value)} {one if is_one(value) else many}"
    parts = []
    if int(whole) or not int(fraction):
        parts.append(f"{en_integer(whole)} {one if whole == '1' else many}")
    if int(fraction):
        amount = str(int(fraction))
        parts.append(f"{en_integer(amount)} {cent if amount == '1' else cents}")
    return sign + " and ".join(parts)


def _unit(m: re.Match[str]) -> str:
    forms = UNITS[canonical(m["unit"] or m["spaced"])]
    # "a 5 kW heater": before a noun the unit is singular
    described = re.search(r"(?<![A-Za-z])[Aa]n?\s$", m.string[max(0, m.start() - 4) : m.start()])
    name = forms[1] if described else _name(forms, m["value"])
    low = f"{en_number(m['low'])} to " if m["low"] else ""
    return f"{low}{en_number(m['value'])} {name}"


def _range(m: re.Match[str]) -> str:
    return f"{en_number(m['low'])} to {en_number(m['value'])}"


def _fraction(m: re.Match[str]) -> str:
    part, of = m["part"], m["of"]
    if part == of and not m["whole"]:
        return f"{en_integer(part)} {en_integer(of)}"
    if int(of) in (0, 1) or int(of) > 100 or int(part) > int(of) >= 10:
        return f"{en_integer(part)} over {en_integer(of)}"
    one, many = _FRACTION_NAMES.get(of, ("", ""))
    if not one:
        one = en_ordinal(of)
        many = f"{one}s"
    words = f"{en_integer(part)} {one if part == '1' else many}"
    if m["whole"]:
        article = f"a {one}" if part == "1" and of in _FRACTION_NAMES else words
        return f"{en_integer(m['whole'])} and {article}"
    return words


def _ordinal(m: re.Match[str]) -> str:
    return en_ordinal(m["n"].replace(",", ""))


def _chain(m: re.Match[str]) -> str:
    parts = re.split(r"([.,])", m.group())
    return "".join(" point " if p == "." else ", " if p == "," else en_integer(p) for p in parts)


def _bare_number(m: re.Match[str]) -> str:
    """A number alone: four digits where a year may stand are one."""
    if _YEAR.fullmatch(m.group()):
        before, after = m.string[: m.start()][-12:], m.string[m.end() : m.end() + 10]
        if _BEFORE_YEAR.search(before) or _AFTER_YEAR.match(after):
            return en_year(m.group())
    return en_number(m.group())


def _roman_cardinal(m: re.Match[str]) -> str:
    value = roman(m["roman"])
    return m.group() if value is None else f"{m['lead']} {en_integer(str(value))}"


def _roman_ordinal(m: re.Match[str]) -> str:
    value = roman(m["roman"])
    return m.group() if value is None else f"{m['lead']} the {en_ordinal(str(value))}"


def _decade(m: re.Match[str]) -> str:
    words = en_year(m["n"]) if len(m["n"]) == 4 else en_integer(m["n"])
    return words[:-1] + "ies" if words.endswith("y") else f"{words}s"


_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")
_BEFORE_YEAR = re.compile(
    r"(?<![A-Za-z])(?:in|since|of|by|until|till|year|before|after|during|circa|early|late|mid|"
    r"spring|summer|autumn|fall|winter|January|February|March|April|May|June|July|August|"
    r"September|October|November|December)\s$",
    re.IGNORECASE,
)
_AFTER_YEAR = re.compile(r"\s?(?:[.,;:!?)]|$)|\s(?:is|was|will|has|had|and|or|model|edition)\b")


def _words(table: dict[str, str]) -> re.Pattern[str]:
    return re.compile(
        r"(?<![A-Za-z.])("
        + "|".join(re.escape(w) for w in sorted(table, key=len, reverse=True))
        + ")"
        r"(?![A-Za-z])"
    )


RULES: tuple[Rule, ...] = (
    (re.compile(r"(?<=\d)T(?=\d{2}:\d{2})"), lambda _m: " "),
    (re.compile(r"(?<![A-Za-z.])(?:[A-Z]\.){2,6}"), lambda m: " ".join(m.group().replace(".", ""))),
    (re.compile(r"(?<![A-Za-z])WWI(?P<two>I)?(?![A-Za-z])"), lambda m: "World War " + ("two" if m["two"] else "one")),
    (re.compile(r"(?<![\d.])(?P<h>\d{1,3})\s?h\s?(?P<m>\d{1,2})\s?m(?:in)?(?![A-Za-z])"),
     lambda m: f"{m['h']} {'hour' if is_one(m['h']) else 'hours'} {m['m']} {'minute' if is_one(m['m']) else 'minutes'}"),
    (re.compile(r"(?<=\d)[kK](?=\s[a-z])"), lambda _m: " thousand"),
    (re.compile(r"(?<=\d)M(?=\s[a-z])"), lambda _m: " million"),
    (re.compile("(?P<whole>\\d{1,3})?\\s?(?P<f>[½⅓⅔¼¾⅕⅛])"),
     lambda m: f"{m['whole'] + ' ' if m['whole'] else ''}{_UNICODE_FRACTIONS[m['f']]}"),
    (re.compile(r"(?<![A-Za-z])(?:[Nn]o|Nos)\.\s?(?=\d)"), lambda _m: "number "),
    (re.compile(r"#\s?(?=\d)"), lambda _m: "number "),
    (re.compile(r"(?<!\d)24/7(?!\d)"), lambda _m: "twenty four seven"),
    (re.compile(r"(?<!\d)(?P<ft>\d{1,2})'\s?(?P<inch>\d{1,2})(?:\"|'')"),
     lambda m: f"{en_integer(m['ft'])} feet {en_integer(m['inch'])} inches"),
    (re.compile(r"(?P<lead>\b(?:call|dial|ring|press|code|pin|password|passcode)(?:\sis)?\s)(?P<n>\d{3,8})(?![\d.,:/-]{0,30}\d)", re.IGNORECASE),
     lambda m: m["lead"] + en_digits(m["n"])),
    (re.compile(r"(?<![A-Za-z])(?P<name>[A-Z]{1,4})(?P<n>\d{3,6})(?![\dA-Za-z])"),
     lambda m: f"{m['name']} {en_digits(m['n'])}"),
    (re.compile(r"(?<=\d)x(?=\d)"), lambda _m: " by "),
    (re.compile(r"(?<=\d)x(?=\s[a-z])"), lambda _m: " times"),
    (_words(_ABBREVIATIONS), lambda m: _ABBREVIATIONS[m[1]]),
    (re.compile(r"(?<!\d)(?P<year>\d{4})(?P<by>[-/.])(?P<month>\d{1,2})(?P=by)(?P<day>\d{1,2})(?!\d)"), _iso_date),
    (re.compile(r"(?<![\d/])(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})(?![\d/])"), _iso_date),
    (re.compile(rf"(?<![A-Za-z])(?P<month>{_MONTH})\.?\s(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:\s?[-–]\s?(?P<last>[12]?\d|3[01])(?:st|nd|rd|th)?)?(?![\d:.]{{0,30}}\d|%)(?:,?\s(?P<year>\d{{4}})(?!\d))?"), _month_date),
    (re.compile(rf"(?<![\d.:])(?P<day>\d{{1,2}})(?:st|nd|rd|th)?\s(?P<of>of\s)?(?P<month>{_MONTH})(?![a-z])\.?(?:,?\s(?P<year>\d{{4}})(?!\d))?"), _month_date),
    (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]{0,30}\d)"), _dotted),
    (re.compile(r"(?<![A-Za-z])(?P<v>[vV]|[Vv]ersion )(?P<number>\d{1,4}(?:\.\d{1,4}){1,3})(?!\d)"), _version),
    (re.compile(r"(?<![\d.])(?P<v>)(?P<number>\d{1,4}(?:\.\d{1,4}){2,3})(?![\d.]{0,30}\d)"), _version),
    (re.compile(r"(?<![\d:.-])(?P<h1>\d{1,2})(?::(?P<m1>\d{2}))?\s?(?P<half1>[AaPp]\.?[Mm]\.?)?\s?(?:-|–|—|to|until)\s?(?P<h2>\d{1,2})(?::(?P<m2>\d{2}))?\s?(?P<half>[AaPp]\.?[Mm](?:\.(?=\s|$))?)(?![A-Za-z])"), _time_range),
    (re.compile(r"(?<![\d:])(?P<h1>\d{1,2}):(?P<m1>\d{2})(?P<half1>)\s?[-–—]\s?(?P<h2>\d{1,2}):(?P<m2>\d{2})(?P<half>)(?![:\d])"), _time_range),
    (re.compile(r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?![:\d])(?:\s?(?P<half>[AaPp]\.?[Mm](?:\.(?=\s|$))?)(?![A-Za-z]))?"), _time),
    (re.compile(r"(?<![\d:.])(?P<hour>\d{1,2})\s?(?P<half>[AaPp]\.?[Mm](?:\.(?=\s|$))?)(?![A-Za-z])"), _whole_hour),
    (re.compile(r"(?<![\d:])(?P<h1>\d{1,4}):(?P<m1>\d{1,4})(?![:\d])"), lambda m: f"{en_integer(m['h1'])} to {en_integer(m['m1'])}"),
    (re.compile(r"(?<![\d.])(?:\+\d{1,3}[- ]?)?(?:\(\d{3}\)\s?|\d{3}[-. ])\d{3}[-. ]\d{4}(?!\d)"), _phone),
    (re.compile(r"(?<![\d.])\d{3}-\d{4}(?!\d)|(?<!\d)\+\d{7,15}(?!\d)"), _phone),
    (re.compile(rf"(?:(?P<low>{_SIGNED})(?:\s?°[CF]?)?{_TO})?(?P<value>{_SIGNED})\s?°\s?(?P<scale>[CF](?![A-Za-z]))?"), _temperature),
    (re.compile(rf"(?:(?P<low>{_SIGNED})[%‰]?{_TO})?(?P<value>{_SIGNED})\s?(?P<sign>[%‰])"), _percent),
    (re.compile(rf"(?P<minus>(?<![\d])[-−])?(?P<currency>{_CURRENCY})\s?(?:(?P<low>{_NUMBER}){_TO}\$?)?(?P<value>{_NUMBER})(?:\s?(?P<scale>thousand|million|billion|trillion)(?![a-z]))?"), _money),
    (re.compile(rf"(?:(?P<low>{_SIGNED}){_TO})?(?P<value>{_SIGNED}){UNIT_PATTERN}"), _unit),
    (re.compile(r"(?<![\d/.])(?:(?P<whole>\d{1,3})\s)?(?P<part>\d{1,3})/(?P<of>\d{1,3})(?![\d/])"), _fraction),
    (re.compile(r"(?<![\d.])(?P<n>\d{1,3}(?:,\d{3}){1,3}|\d{1,12})(?:st|nd|rd|th)(?![A-Za-z])"), _ordinal),
    (re.compile(r"(?<![\d.])'?(?P<n>(?:1[1-9]|20)\d0|[2-9]0)'?s(?![A-Za-z])"), _decade),
    (re.compile(rf"(?P<lead>{_NUMBERED})\s(?P<roman>[IVXLC]{{1,8}})(?![A-Za-z'])"), _roman_cardinal),
    (re.compile(rf"(?P<lead>{_REGNAL})\s(?P<roman>[IVX]{{1,8}})(?![A-Za-z'])"), _roman_ordinal),
    # names with numbers: 3B, CO2
    (re.compile(r"(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])"), lambda _m: " "),
    (re.compile(r"(?<=\d)\s?[×*]\s?(?=\d)|(?<=\d)\sx\s(?=\d)"), lambda _m: " times "),
    (re.compile(r"(?<=\d)\s?[÷]\s?(?=\d)"), lambda _m: " divided by "),
    (re.compile(r"(?<=\d)\s?\+\s?(?=\d)|(?<=\w)\s\+\s(?=\w)"), lambda _m: " plus "),
    (re.compile(r"(?<=\d)\s[-−]\s(?=\d[\d.,]{0,20}\s?=)"), lambda _m: " minus "),
    (re.compile(rf"(?<![\d.A-Za-z])(?P<low>{_NUMBER})\s?(?:-|–|—|~)\s?(?P<value>{_NUMBER})(?!\s?[-\d])"), _range),
    (re.compile(rf"(?<![\d.\w])[-−]{_NUMBER}"), lambda m: en_number(m.group())),
    (re.compile(r"(?<![\d.,\w])\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,15})?(?![\d,])"), lambda m: en_number(m.group())),
    (re.compile(r"(?<![\d.,])\d{1,15}\.\d{1,15}(?![\d.]{0,30}\d)"), lambda m: en_number(m.group())),
    (re.compile(r"(?<![\d.,])\.\d{1,15}(?!\d)"), lambda m: en_number(m.group())),
    # longer chains, which wetext would try every way to read
    (re.compile(r"\d{1,15}(?:[.,]\d{1,15}){2,}"), _chain),
    (re.compile(r"(?<![\d.,A-Za-z])\d{1,15}(?![\d,.]{0,30}\d)"), _bare_number),
    (re.compile(r"\s?&\s?"), lambda _m: " and "),
    (re.compile(r"\s?≥\s?"), lambda _m: " at least "),
    (re.compile(r"\s?≤\s?"), lambda _m: " at most "),
    (re.compile(r"±\s?"), lambda _m: "plus or minus "),
    (re.compile(r"(?<=\w)\s?=\s?(?=\w)"), lambda _m: " equals "),
    (re.compile(r"(?<=\w)\s>\s(?=\w)"), lambda _m: " greater than "),
    (re.compile(r"(?<=\w)\s<\s(?=\w)"), lambda _m: " less than "),
    (re.compile(r"[~≈]\s?(?=[a-z0-9])"), lambda _m: "about "),
    (re.compile(rf"(?<=[a-z]){PER_UNIT_PATTERN}"), lambda m: f" per {UNITS[canonical(m['unit'])][1]}"),
    (re.compile(r"(?<=[a-z])/(?=[a-z])"), lambda _m: " or "),
    (re.compile(r"(?<=\w)@(?=\w)"), lambda _m: " at "),
)  # fmt: skip


_TITLE = re.compile(r"(?<![A-Za-z])(" + "|".join(_TITLES) + r")\.(?!\w)")
_SAINT = re.compile(r"(?<![A-Za-z])St\.(?=\s?[A-Z])")
_STREET = re.compile(r"(?<![A-Za-z])St\.(?!\w)|(?<=[a-z]\s)St(?=\s*(?:[,.]|$))")


def expand_titles(text: str) -> str:
    """Doctor, Mister, Saint and such in full, whatever the language around them."""
    if "." not in text and "St" not in text:
        return text
    text = _TITLE.sub(lambda m: _TITLES[m[1]], text)
    return _STREET.sub("Street", _SAINT.sub("Saint", text))


def apply_en(text: str) -> str:
    """The text with these kinds of numbers, abbreviations and symbols in words."""
    text = text.replace("’", "'")
    for pattern, say in RULES:
        text = pattern.sub(say, text)
    for contraction, words in _CONTRACTION_RULES:
        text = contraction.sub(words, text)
    return text


def finish_en(text: str) -> str:
    """Words for digits that nothing else has read."""
    return re.sub(r"\d{1,15}", lambda m: en_integer(m.group()), text)
