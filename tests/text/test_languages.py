"""Other languages, letters with marks, and a household's own words."""

import contextlib

import pytest

from wyoming_chattts.config import FallbackConfig, ReplacementConfig, load
from wyoming_chattts.engine.base import End, Prompt, Sampling
from wyoming_chattts.engine.fallback import FallbackEngine
from wyoming_chattts.errors import ConfigError
from wyoming_chattts.text.frontend import FrontEnd
from wyoming_chattts.text.languages import foreign_language, plain_letters

SENTENCES = {
    "ja": "今日はいい天気です。電気を消しました。",
    "ko": "안녕하세요, 오늘 날씨가 좋습니다.",
    "ru": "Сегодня хорошая погода.",
    "ar": "صباح الخير، الطقس جميل اليوم.",
    "el": "Καλημέρα, το φως είναι αναμμένο.",
    "he": "בוקר טוב, האור דולק.",
    "hi": "सुप्रभात, बत्ती जल रही है।",
    "de": "Guten Morgen, das Licht ist an und die Tür ist zu.",
    "fr": "Bonjour, la lumière est dans le salon.",
    "es": "Buenos días, la luz está en el salón.",
    "it": "Buongiorno, la luce è nel salotto e il gatto dorme.",
    "nl": "Goedemorgen, het licht is aan en de deur is dicht.",
    "pt": "Bom dia, a luz está na sala e não há ninguém.",
}
OURS = [
    "Good morning, the light is on.", "The die is cast.", "café in Zürich", "Play la vida loca",
    "早上好，今天天气不错。", "開啟客廳的燈", "OK", "42", "", "…", "Set 客厅 to 20",
    "I am in Los Angeles", "El Niño is here today",
]  # fmt: skip


@pytest.mark.parametrize("language", SENTENCES)
def test_other_languages_are_recognised(language: str) -> None:
    assert foreign_language(SENTENCES[language]) == language


@pytest.mark.parametrize("text", OURS)
def test_chinese_and_english_are_ours(text: str) -> None:
    assert foreign_language(text) is None


@pytest.mark.parametrize("language", SENTENCES)
def test_the_fallback_voice_speaks_them(language: str) -> None:
    spoken = FrontEnd().speak(SENTENCES[language])
    assert spoken.foreign
    with contextlib.closing(FallbackEngine(FallbackConfig())) as engine:
        engine.start(0, Prompt(spoken.text, language=spoken.language), Sampling())
        output = engine.burst(8)[0]
    assert output.end is End.COMPLETE
    assert output.audio.size > 12_000


def test_a_language_without_an_espeak_voice_is_spoken_all_the_same() -> None:
    with contextlib.closing(FallbackEngine(FallbackConfig())) as engine:
        engine.start(0, Prompt("something to say", language="xx-none"), Sampling())
        assert engine.burst(8)[0].audio.size > 12_000


def test_letters_with_marks_keep_their_letter() -> None:
    assert plain_letters("café Straße Ærø naïve Łódź μ") == "cafe Strasse Aero naive Lodz  mu "
    assert FrontEnd().speak("A café in Zürich").text == "A cafe in Zurich"


def test_replacements_come_first() -> None:
    front_end = FrontEnd(
        replacements=[
            ReplacementConfig(word="Mochi", say="摩奇", language="zh"),
            ReplacementConfig(word="Wohnzimmer", say="living room"),
            ReplacementConfig(word="小爱", say="小艾"),
            ReplacementConfig(regex=r"\bRm (\d+)", say=r"room \1"),
            ReplacementConfig(word="5°C", say="rather cold"),
        ]
    )
    assert front_end.speak("Mochi在家").text == "摩奇在家"
    assert front_end.speak("Mochi is home").text == "Mochi is home"
    assert front_end.speak("The wohnzimmer light").text == "The living room light"
    assert front_end.speak("The Wohnzimmers light").text == "The Wohnzimmers light"
    assert front_end.speak("你好小爱").text == "你好小艾"
    assert front_end.speak("In Rm 12").text == "In room twelve"
    assert front_end.speak("It is 5°C").text == "It is rather cold"


@pytest.mark.parametrize(
    "rule",
    [{"say": "x"}, {"word": "a", "regex": "b", "say": "x"}, {"regex": "(", "say": "x"}, {"word": "", "say": "x"}],
)  # fmt: skip
def test_impossible_replacements_are_refused(rule: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"text\.replacements\.0"):
        load(environ={}, overrides={"text.replacements": [rule]})
