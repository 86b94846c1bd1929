"""Units of the home and what they are called: Chinese, English singular and plural."""

import re

UNITS: dict[str, tuple[str, str, str]] = {
    "kWh": ("千瓦时", "kilowatt hour", "kilowatt hours"),
    "Wh": ("瓦时", "watt hour", "watt hours"),
    "MWh": ("兆瓦时", "megawatt hour", "megawatt hours"),
    "mAh": ("毫安时", "milliamp hour", "milliamp hours"),
    "Ah": ("安时", "amp hour", "amp hours"),
    "VA": ("伏安", "volt ampere", "volt amperes"),
    "mmHg": ("毫米汞柱", "millimeter of mercury", "millimeters of mercury"),
    "GWh": ("吉瓦时", "gigawatt hour", "gigawatt hours"),
    "GW": ("吉瓦", "gigawatt", "gigawatts"),
    "kW": ("千瓦", "kilowatt", "kilowatts"),
    "KW": ("千瓦", "kilowatt", "kilowatts"),
    "MW": ("兆瓦", "megawatt", "megawatts"),
    "W": ("瓦", "watt", "watts"),
    "kV": ("千伏", "kilovolt", "kilovolts"),
    "mV": ("毫伏", "millivolt", "millivolts"),
    "V": ("伏", "volt", "volts"),
    "mA": ("毫安", "milliamp", "milliamps"),
    "A": ("安", "amp", "amps"),
    "Ω": ("欧姆", "ohm", "ohms"),
    "GHz": ("吉赫兹", "gigahertz", "gigahertz"),
    "MHz": ("兆赫兹", "megahertz", "megahertz"),
    "kHz": ("千赫兹", "kilohertz", "kilohertz"),
    "Hz": ("赫兹", "hertz", "hertz"),
    "lx": ("勒克斯", "lux", "lux"),
    "lm": ("流明", "lumen", "lumens"),
    "ppm": ("ppm", "parts per million", "parts per million"),
    "ppb": ("ppb", "parts per billion", "parts per billion"),
    "µg/m³": ("微克每立方米", "microgram per cubic meter", "micrograms per cubic meter"),
    "mg/m³": ("毫克每立方米", "milligram per cubic meter", "milligrams per cubic meter"),
    "mg/L": ("毫克每升", "milligram per liter", "milligrams per liter"),
    "dBm": ("dBm", "decibel milliwatt", "decibel milliwatts"),
    "dB": ("分贝", "decibel", "decibels"),
    "hPa": ("百帕", "hectopascal", "hectopascals"),
    "kPa": ("千帕", "kilopascal", "kilopascals"),
    "Pa": ("帕", "pascal", "pascals"),
    "mbar": ("毫巴", "millibar", "millibars"),
    "bar": ("巴", "bar", "bars"),
    "psi": ("psi", "pound per square inch", "pounds per square inch"),
    "km/h": ("公里每小时", "kilometer per hour", "kilometers per hour"),
    "kmh": ("公里每小时", "kilometer per hour", "kilometers per hour"),
    "mph": ("英里每小时", "mile per hour", "miles per hour"),
    "m/s": ("米每秒", "meter per second", "meters per second"),
    "mm/h": ("毫米每小时", "millimeter per hour", "millimeters per hour"),
    "L/min": ("升每分钟", "liter per minute", "liters per minute"),
    "rpm": ("转每分钟", "revolution per minute", "revolutions per minute"),
    "bpm": ("次每分钟", "beat per minute", "beats per minute"),
    "km²": ("平方公里", "square kilometer", "square kilometers"),
    "m²": ("平方米", "square meter", "square meters"),
    "cm²": ("平方厘米", "square centimeter", "square centimeters"),
    "m³": ("立方米", "cubic meter", "cubic meters"),
    "km": ("公里", "kilometer", "kilometers"),
    "cm": ("厘米", "centimeter", "centimeters"),
    "mm": ("毫米", "millimeter", "millimeters"),
    "µm": ("微米", "micrometer", "micrometers"),
    "m": ("米", "meter", "meters"),
    "ft": ("英尺", "foot", "feet"),
    "mi": ("英里", "mile", "miles"),
    "kg": ("公斤", "kilogram", "kilograms"),
    "mg": ("毫克", "milligram", "milligrams"),
    "g": ("克", "gram", "grams"),
    "lbs": ("磅", "pound", "pounds"),
    "lb": ("磅", "pound", "pounds"),
    "oz": ("盎司", "ounce", "ounces"),
    "ml": ("毫升", "milliliter", "milliliters"),
    "mL": ("毫升", "milliliter", "milliliters"),
    "L": ("升", "liter", "liters"),
    "l": ("升", "liter", "liters"),
    "ms": ("毫秒", "millisecond", "milliseconds"),
    "min": ("分钟", "minute", "minutes"),
    "mins": ("分钟", "minute", "minutes"),
    "hrs": ("小时", "hour", "hours"),
    "hr": ("小时", "hour", "hours"),
    "h": ("小时", "hour", "hours"),
    "s": ("秒", "second", "seconds"),
    "sec": ("秒", "second", "seconds"),
    "kcal": ("千卡", "kilocalorie", "kilocalories"),
    "cal": ("卡", "calorie", "calories"),
    "Mbps": ("兆比特每秒", "megabit per second", "megabits per second"),
    "Gbps": ("吉比特每秒", "gigabit per second", "gigabits per second"),
    "MB/s": ("兆字节每秒", "megabyte per second", "megabytes per second"),
    "TB": ("TB", "terabyte", "terabytes"),
    "GB": ("GB", "gigabyte", "gigabytes"),
    "MB": ("MB", "megabyte", "megabytes"),
    "KB": ("KB", "kilobyte", "kilobytes"),
    "K": ("开尔文", "kelvin", "kelvins"),
    "px": ("像素", "pixel", "pixels"),
}
_NOT_GLUED = frozenset({"K", "s", "mi", "cal", "bar", "sec"})
"""Units that in text are more often something else (4K, the 90s): a space must stand before."""

TEMPERATURES = {
    "C": ("摄氏度", "degree Celsius", "degrees Celsius"),
    "F": ("华氏度", "degree Fahrenheit", "degrees Fahrenheit"),
    "": ("度", "degree", "degrees"),
}


def _spellings(unit: str) -> set[str]:
    """How a unit is typed: either micro sign or a u, powers as characters, digits or with ^."""
    found = {unit, unit.replace("µ", "\u03bc"), unit.replace("µ", "u")}
    for spelling in set(found):
        found.add(spelling.replace("²", "^2").replace("³", "^3"))
        if len(unit) > 2 or unit in ("m²", "m³"):
            found.add(spelling.replace("²", "2").replace("³", "3"))
    return found


_CANONICAL = {spelling: unit for unit in UNITS for spelling in _spellings(unit)}


def canonical(text: str) -> str:
    """The table's spelling of a unit."""
    return _CANONICAL[text]


_SPELLINGS = sorted(_CANONICAL, key=len, reverse=True)
_GLUED = "|".join(re.escape(u) for u in _SPELLINGS if u not in _NOT_GLUED)
_SPACED = "|".join(re.escape(u) for u in _SPELLINGS if u in _NOT_GLUED - {"K"})
PER_UNIT_PATTERN = rf"/(?P<unit>{_GLUED})(?![A-Za-z0-9/²³^])"
"""A unit behind a price."""
UNIT_PATTERN = rf"(?:[ ]?(?P<unit>{_GLUED})|[ ](?P<spaced>{_SPACED}))(?![A-Za-z0-9/²³^])"
"""A unit behind a number."""
