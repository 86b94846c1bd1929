"""Rules for Chinese text that run before wetext: kinds of numbers that it reads wrong.

Each rule is a pattern and what is said for it. Patterns are bounded, so that time stays linear.
"""

import re
from collections.abc import Callable

from .numbers import roman, zh_digits, zh_integer, zh_number, zh_quantity
from .units import PER_UNIT_PATTERN, TEMPERATURES, UNIT_PATTERN, UNITS, canonical

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

_NUMBER = r"\d{1,15}(?:,\d{3}){0,5}(?:\.\d{1,15})?"
_SIGNED = rf"(?:(?<![\d.A-Za-z)])[-−–])?{_NUMBER}"
_TO = r"\s?(?:-|–|—|~|～|－|到|至)\s?"
_CURRENCIES = {"$": "美元", "US$": "美元", "HK$": "港元", "NT$": "新台币", "¥": "元", "￥": "元",
               "€": "欧元", "£": "英镑", "₩": "韩元", "₽": "卢布"}  # fmt: skip
_CURRENCY = "|".join(re.escape(c) for c in sorted(_CURRENCIES, key=len, reverse=True))
_DIGIT_CONTEXT = (
    r"(?:电话|手机号?|号码|QQ群|热线|拨打|致电|呼叫|客服|座机|传真|验证码|密码|编号|订单号?|邮编|账号|卡号|"
    r"尾号|工号|门牌号?|QQ|房间号|航班号?|车牌号?)(?:是|为|：|:|\s)?\s?"
)
_FRACTIONS = {"½": "二分之一", "⅓": "三分之一", "⅔": "三分之二", "¼": "四分之一", "¾": "四分之三",
              "⅕": "五分之一", "⅛": "八分之一"}  # fmt: skip


def _date(m: re.Match[str]) -> str:
    month, day = int(m["month"]), int(m["day"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return m.group()
    return f"{zh_digits(m['year'])}年{zh_integer(m['month'])}月{zh_integer(m['day'])}日"


def _clock(hour: str, minute: str, second: str | None = None) -> str:
    words = "两点" if int(hour) == 2 else f"{zh_integer(hour)}点"
    if int(minute) or (second and int(second)):
        lead = "零" if minute.startswith("0") and int(minute) else ""
        words += f"{lead}{zh_integer(minute)}分"
    if second and int(second):
        words += f"{zh_integer(second)}秒"
    return words


def _time(m: re.Match[str]) -> str:
    if int(m["hour"]) > 24 or int(m["minute"]) > 59:
        return f"{zh_integer(m['hour'])}比{zh_integer(m['minute'])}"
    half = {"am": "上午", "pm": "下午"}.get((m["half"] or "").lower().replace(".", ""), "")
    return half + _clock(m["hour"], m["minute"], m["second"])


def _time_range(m: re.Match[str]) -> str:
    return f"{_clock(m['h1'], m['m1'])}到{_clock(m['h2'], m['m2'])}"


def _phone(m: re.Match[str]) -> str:
    return zh_digits(m.group(), one="幺")


def _context_digits(m: re.Match[str]) -> str:
    digits = zh_digits(m["digits"], one="幺")
    return m.group()[: m.start("digits") - m.start()] + digits


def _dotted(m: re.Match[str]) -> str:
    return "点".join(zh_digits(part) for part in m.group().split("."))


def _version(m: re.Match[str]) -> str:
    return m["v"] + "点".join(zh_integer(part) for part in m["number"].split("."))


def _temperature(m: re.Match[str]) -> str:
    unit = TEMPERATURES[m["scale"] or ""][0]
    low = "".join(zh_number(m["low"], "零下") + unit + "到") if m["low"] else ""
    return f"{low}{zh_number(m['value'], '零下')}{unit}"


def _percent(m: re.Match[str]) -> str:
    of = "千分之" if m["sign"] == "‰" else "百分之"

    def one(number: str) -> str:
        negative = number[:1] in "-−–"
        plain = number.lstrip("-−–")
        words = "百" if plain == "100" and of == "百分之" else zh_number(plain)
        return ("负" if negative else "") + of + words

    return (one(m["low"]) + "到" if m["low"] else "") + one(m["value"])


def _money(m: re.Match[str]) -> str:
    currency = _CURRENCIES[m["currency"]]
    low = f"{zh_number(m['low'])}到" if m["low"] else ""
    return f"{low}{zh_number(m['value'])}{m['scale'] or ''}{currency}"


def _unit(m: re.Match[str]) -> str:
    name = UNITS[canonical(m["unit"] or m["spaced"])][0]
    low = f"{zh_number(m['low'])}到" if m["low"] else ""
    value = zh_number(m["value"]) if low else zh_quantity(m["value"])
    return f"{low}{value}{name}"


def _range(m: re.Match[str]) -> str:
    following = m.string[m.end() : m.end() + 1]
    if following == "年" and len(m["low"]) == len(m["value"]) == 4:
        return f"{zh_digits(m['low'])}到{zh_digits(m['value'])}"
    if m["value"] == "2" and "一" <= following <= "鿿" and following not in "月号日级年楼层":
        return f"{zh_number(m['low'])}到两"
    return f"{zh_number(m['low'])}到{zh_number(m['value'])}"


def _fraction(m: re.Match[str]) -> str:
    if int(m["of"]) == 0:
        return m.group()
    if int(m["part"]) >= int(m["of"]) >= 10:
        # no fraction: a blood pressure, a score
        return f"{zh_integer(m['part'])}，{zh_integer(m['of'])}"
    return f"{zh_integer(m['of'])}分之{zh_integer(m['part'])}"


def _ratio(m: re.Match[str]) -> str:
    return f"{zh_number(m['a'])}比{zh_number(m['b'])}"


def _roman(m: re.Match[str]) -> str:
    value = roman(m["roman"])
    return m.group() if value is None else f"第{zh_integer(str(value))}{m['kind']}"


def _letters_digits(m: re.Match[str]) -> str:
    """CO2 → C O 二, B12 → B 一二 (a name with a number, not a quantity)."""
    return m["letters"] + zh_digits(m["digits"])


def _chain(m: re.Match[str]) -> str:
    parts = re.split(r"([.,])", m.group())
    return "".join("点" if p == "." else "，" if p == "," else zh_integer(p) for p in parts)


def _signed(m: re.Match[str]) -> str:
    return zh_number(m.group())


def _number(m: re.Match[str]) -> str:
    return zh_number(m.group())


_MATH = {
    "+": "加",
    "-": "减",
    "−": "减",
    "×": "乘",
    "*": "乘",
    "÷": "除以",
    "=": "等于",
    "/": "除以",
}


def _operator(m: re.Match[str]) -> str:
    return _MATH[m["op"]]


RULES: tuple[Rule, ...] = (
    (re.compile(r"(?<=\d)T(?=\d{2}:\d{2})"), lambda _m: " "),
    (re.compile(r"(?<![\d.])(?P<h>\d{1,3})\s?h\s?(?P<m>\d{1,2})\s?m(?:in)?(?![A-Za-z])"),
     lambda m: f"{zh_quantity(m['h'])}小时{zh_quantity(m['m'])}分钟"),
    (re.compile(r"(?<!\d)(?P<a>\d{2,3})/(?P<b>\d{2,3})\s?mmHg"), lambda m: f"{zh_integer(m['a'])}，{zh_integer(m['b'])}毫米汞柱"),
    (re.compile(r"第(?P<n>\d{1,9})(?![\d.]\d)"), lambda m: f"第{zh_integer(m['n'])}"),
    (re.compile(rf"(?<=[元块角分]){PER_UNIT_PATTERN}"), lambda m: f"每{UNITS[canonical(m['unit'])][0]}"),
    (re.compile(r"(?<!\d)(?P<year>\d{4})(?P<by>[-/.])(?P<month>\d{1,2})(?P=by)(?P<day>\d{1,2})(?!\d)"), _date),
    (re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]{0,30}\d)"), _dotted),
    (re.compile(r"(?<![A-Za-z])(?P<v>[vV]|版本\s?)(?P<number>\d{1,4}(?:\.\d{1,4}){1,3})(?!\d)"), _version),
    (re.compile(r"(?<![\d.])(?P<v>)(?P<number>\d{1,4}(?:\.\d{1,4}){2,3})(?![\d.]{0,30}\d)"), _version),
    (re.compile(r"(?<!\d)(?P<h1>\d{1,2}):(?P<m1>\d{2})" + _TO + r"(?P<h2>\d{1,2}):(?P<m2>\d{2})(?![:\d])"), _time_range),
    (re.compile(r"(?<=比分)(?P<gap>[是为：:\s]{0,2})(?P<a>\d{1,3})\s?[:：\-–]\s?(?P<b>\d{1,3})(?!\d)"),
     lambda m: m["gap"] + _ratio(m)),
    (re.compile(r"(?<![\d:])(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?![:\d])(?:\s?(?P<half>[AaPp]\.?[Mm]\.?)(?![A-Za-z]))?"), _time),
    (re.compile(r"(?<![\d:])(?P<a>\d{1,4}(?:\.\d{1,4})?)[:：](?P<b>\d{1,4}(?:\.\d{1,4})?)(?![:\d])"), _ratio),
    (re.compile(r"(?<!\d)(?:\+?86[- ]?)?1[3-9]\d(?:[- ]?\d{4}){2}(?!\d)"), _phone),
    (re.compile(r"(?<![\d.])0\d{2,3}[- ]?\d{7,8}(?!\d)|(?<!\d)[48]00[- ]\d{3}[- ]?\d{4}(?!\d)"), _phone),
    (re.compile(_DIGIT_CONTEXT + r"(?P<digits>\d{3,20}(?:-\d{3,8}){0,3})(?![\d.]{0,30}\d|[ ]?[度元个年月%])"), _context_digits),
    (re.compile(rf"(?:(?P<low>{_SIGNED})(?:\s?°[CF]?)?{_TO})?(?P<value>{_SIGNED})\s?°\s?(?P<scale>[CF](?![A-Za-z]))?"), _temperature),
    (re.compile(rf"(?:(?P<low>{_SIGNED})[%‰]?{_TO})?(?P<value>{_SIGNED})\s?(?P<sign>[%‰])"), _percent),
    (re.compile(rf"(?P<currency>{_CURRENCY})\s?(?:(?P<low>{_NUMBER}){_TO})?(?P<value>{_NUMBER})\s?(?P<scale>[百千万亿]{{1,2}})?(?:美元|元)?"), _money),
    (re.compile(rf"(?:(?P<low>{_SIGNED}){_TO})?(?P<value>{_SIGNED}){UNIT_PATTERN}"), _unit),
    (re.compile(r"(?<=\d)\s?(?P<op>[+×*÷−-])\s?(?=\d[\d.]{0,15}\s?[=+×*÷])"), _operator),
    (re.compile(r"(?<=\d)\s?(?P<op>[×÷=*])\s?(?=\d)"), _operator),
    (re.compile(r"(?<=[=+×÷加减乘以于])\s?(?P<op>[+−-])\s?(?=\d)"), _operator),
    (re.compile(rf"(?<![\d.A-Za-z])(?P<low>{_NUMBER})\s?(?:-|–|—|~|～|－)\s?(?P<value>{_NUMBER})(?!\s?[-\d])"), _range),
    (re.compile(r"(?<![\d/.])(?P<part>\d{1,4})/(?P<of>\d{1,4})(?![\d/])"), _fraction),
    (re.compile(r"第(?P<roman>[IVXLC]{1,7})(?P<kind>[章节部季集卷届代期册])"), _roman),
    (re.compile(r"(?<![A-Za-z])(?:No|NO|no)\.\s?(?P<n>\d{1,9})"), lambda m: f"第{zh_integer(m['n'])}"),
    (re.compile(r"(?<![A-Za-z])(?P<letters>CO|SO|NO|O|NH|H)(?P<digits>\d)(?![\d.])"), _letters_digits),
    (re.compile(rf"(?<![\d.A-Za-z一-鿿])[-−]{_NUMBER}"), _signed),
    (re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3}){1,5}(?:\.\d{1,15})?(?![\d,])"), _number),
    (re.compile(r"(?<![\d.])2点(?=钟|半|[^\d]|$)"), lambda _m: "两点"),
    (re.compile(r"(?<!\d)\d{3,4}(?=室|房间|号房|宿舍|路公交|路车)"), _phone),
    # longer chains, which wetext would try every way to read
    (re.compile(r"\d{1,15}(?:[.,]\d{1,15}){2,}"), _chain),
    (re.compile(r"(?<![\d.A-Za-z])\d{1,9}(?![\d.A-Za-z一-鿿])"), _number),
    (re.compile("[½⅓⅔¼¾⅕⅛]"), lambda m: _FRACTIONS[m.group()]),
    (re.compile(r"(?<=[A-Za-z])\d{3,20}(?!\d|\.\d)"), lambda m: zh_digits(m.group(), one="幺")),
    (re.compile(r"(?<=[一-鿿\d])\s?=\s?(?=[一-鿿\d])"), lambda _m: "等于"),
    (re.compile(r"\s?&\s?"), lambda _m: "和"),
    (re.compile(r"\s?[≥]\s?"), lambda _m: "大于等于"),
    (re.compile(r"\s?[≤]\s?"), lambda _m: "小于等于"),
    (re.compile(r"±"), lambda _m: "正负"),
    (re.compile(r"(?<=[\d一-鿿])\s?>\s?(?=\d)"), lambda _m: "大于"),
    (re.compile(r"(?<=[\d一-鿿])\s?<\s?(?=\d)"), lambda _m: "小于"),
    (re.compile(r"[~～≈](?=\d)"), lambda _m: "约"),
    (re.compile(r"#(?P<n>\d{1,6})"), lambda m: f"{zh_integer(m['n'])}号"),
)  # fmt: skip


def apply_zh(text: str) -> str:
    """The text with these kinds of numbers in words."""
    for pattern, say in RULES:
        text = pattern.sub(say, text)
    return text


def finish_zh(text: str) -> str:
    """Words for digits that nothing else has read."""
    text = re.sub(rf"(?<![\d.]){_NUMBER}", _number, text)
    return re.sub(r"\d", lambda m: zh_digits(m.group()), text)
