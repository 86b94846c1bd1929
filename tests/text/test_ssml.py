"""SSML as far as ChatTTS can follow it; what is not SSML is read as text."""

import time

import pytest

from wyoming_chattts.text.frontend import FrontEnd
from wyoming_chattts.text.ssml import read_ssml

FRONT_END = FrontEnd()


def said(source: str, language: str = "en") -> str:
    return FRONT_END.speak(read_ssml(source).text, language).text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("<speak>Hello world</speak>", "Hello world"),
        ('<speak>One<break time="200ms"/>two</speak>', "One [uv_break] two"),
        ('<speak>One<break time="1s"/>two</speak>', "One [lbreak] two"),
        ('<speak>One<break strength="x-strong"/>two</speak>', "One [lbreak] two"),
        ('<speak>One<break strength="none"/> two</speak>', "One two"),
        ("<speak>One<break/>two</speak>", "One [uv_break] two"),
        ('<speak><say-as interpret-as="characters">ok7</say-as></speak>', "O K seven"),
        ('<speak><say-as interpret-as="spell-out">用电A1</say-as></speak>', "用电A一"),
        ('<speak>Room <say-as interpret-as="digits">101</say-as></speak>', "Room one zero one"),
        ('<speak><say-as interpret-as="cardinal">1,234</say-as> km</speak>', "one thousand two hundred and thirty four km"),
        ('<speak>The <say-as interpret-as="ordinal">3</say-as> time</speak>', "The third time"),
        ('<speak>这是<say-as interpret-as="ordinal">3</say-as>次</speak>', "这是第三次"),
        ('<speak><say-as interpret-as="date" format="mdy">3/4/2026</say-as></speak>', "March fourth, twenty twenty six"),
        ('<speak><say-as interpret-as="date" format="dmy">3.4.2026</say-as></speak>', "April third, twenty twenty six"),
        ('<speak>At <say-as interpret-as="time">10:30</say-as></speak>', "At ten thirty"),
        ('<speak>Call <say-as interpret-as="telephone">555-0123</say-as></speak>', "Call five five five, zero one two three"),
        ('<speak>拨打<say-as interpret-as="telephone">110</say-as></speak>', "拨打幺幺零"),
        ('<speak><sub alias="World Wide Web">WWW</sub> is big</speak>', "World Wide Web is big"),
        ("<speak><p>First.</p><p>Second.</p></speak>", "First. Second."),
        ('<speak><emphasis level="strong">Now</emphasis> go</speak>', "Now go"),
        ('<speak xmlns="http://www.w3.org/2001/10/synthesis"><voice name="x">Hi <b>there</b></voice></speak>', "Hi there"),
        ('<speak>Hi <audio src="http://x/y.mp3">no</audio> you</speak>', "Hi you"),
        ("<speak>Tom &amp; Jerry &lt; 30</speak>", "Tom and Jerry less than thirty"),
        ("no markup at all", "no markup at all"),
        ("<speak>never closed", "never closed"),
        ("<speak>a <b> crossed </speak></b>", "a crossed"),
        ("<speak>&unknown;</speak>", "and unknown"),
    ],
)  # fmt: skip
def test_documents(source: str, expected: str) -> None:
    assert said(source) == expected


@pytest.mark.parametrize(
    ("rate", "speed"),
    [("slow", 3), ("x-fast", 9), ("120%", 7), ("+30%", 8), ("-20%", 3), ("0.5", 0), ("", None), ("x", None)],
)  # fmt: skip
def test_the_rate_sets_the_speed(rate: str, speed: int | None) -> None:
    assert read_ssml(f'<speak><prosody rate="{rate}">a</prosody></speak>').speed == speed


def test_entities_are_never_expanded() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;&x;">]><speak>&y;&y;</speak>'
    assert "ha" not in read_ssml(bomb).text
    file = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><speak>&x;</speak>'
    assert "root" not in read_ssml(file).text


def test_depth_and_length_cost_linear_time() -> None:
    def seconds(size: int) -> float:
        source = "<speak>" + "<p>" * size + "x" + "</p>" * size + "</speak>"
        begin = time.perf_counter()
        assert "x" in read_ssml(source).text
        return time.perf_counter() - begin

    seconds(1000)
    assert (
        min(seconds(40_000) for _ in range(3)) < 8 * min(seconds(10_000) for _ in range(3)) + 0.02
    )
