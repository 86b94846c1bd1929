"""Segments: where they end, and that pieces do not matter."""

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wyoming_chattts.text.segment import Segmenter

TEXTS = [
    'Dr. Smith is 3.5 m tall. He said "Hi there, you!" and left. OK then. It costs $1,234.56.',
    "早上好。今天多云，最高温度25.5度！好的，我知道了。明天见",
    "Shopping list:\n- Milk\n- Eggs\n\n1. one\n2. two",
    "这是一个非常长的句子没有标点" * 6,
    "word " * 80,
    "Version 1.2.3 at 10:30 p.m. on Mon. 5 Jan. is fine; e.g. this one. See https://a.b/c?d=e! Ok?",
]


def cut(text: str, pieces: list[str] | None = None) -> list[str]:
    segmenter = Segmenter()
    found: list[str] = []
    for piece in pieces if pieces is not None else [text]:
        found += segmenter.feed(piece)
    return found + segmenter.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there. How are you?", ["Hello there.", " How are you?"]),
        ("早上好。今天多云！好吗？", ["早上好。", "今天多云！", "好吗？"]),
        ("Dr. Smith paid $1,234.56 today.", ["Dr. Smith paid $1,234.56 today."]),
        ("It is 3.14. Really.", ["It is 3.14.", " Really."]),
        ("Open 7 a.m. to 9 p.m. daily. Bye now.", ["Open 7 a.m. to 9 p.m. daily.", " Bye now."]),
        ('He said "Stop it!" and left.', ['He said "Stop it!"', " and left."]),
        ("Hi. How are you?", ["Hi. How are you?"]),
        ("最高25.5度。", ["最高25.5度。"]),
        ("温度是3,5,7。", ["温度是3,5,7。"]),
        ("J. K. Rowling wrote it.", ["J. K. Rowling wrote it."]),
        ("It was me and I. Then we left.", ["It was me and I.", " Then we left."]),
        ("1. First thing\n2. Second thing", ["1. First thing\n", "2. Second thing"]),
        ("   \n\n ", []),
    ],
)
def test_ends_of_segments(text: str, expected: list[str]) -> None:
    assert cut(text) == expected


def test_the_first_segment_ends_at_a_clause_if_it_is_long_enough() -> None:
    segments = cut("The living room light is on, and the door is closed, and the heating is off.")
    assert segments == [
        "The living room light is on,",
        " and the door is closed, and the heating is off.",
    ]


def test_a_sentence_leaves_as_soon_as_it_is_safe() -> None:
    segmenter = Segmenter()
    assert segmenter.feed("早上好，大家") == []
    assert segmenter.feed("。") == ["早上好，大家。"]
    assert segmenter.feed("It is 3") == []
    assert segmenter.feed(".") == []
    assert segmenter.feed("5 degrees") == []
    assert segmenter.feed(".") == []
    assert segmenter.feed(" ") == ["It is 3.5 degrees."]


def test_long_runs_are_cut_at_words_and_bounded() -> None:
    for segment in cut("word " * 200)[:-1]:
        assert 80 < len(segment) <= 125 and segment.endswith(" ")
    assert all(len(segment) <= 240 for segment in cut("x" * 1000))
    assert all(len(segment) <= 80 for segment in cut("字" * 1000))


def test_no_number_is_parted_from_its_unit() -> None:
    text = "aaaaaaaaa " * 11 + "is 1234567 km/h now"
    assert not any(segment.rstrip().endswith("1234567") for segment in cut(text))


@pytest.mark.parametrize("text", TEXTS)
def test_every_cut_in_two_gives_the_same(text: str) -> None:
    whole = cut(text)
    assert "".join(whole).split() == text.split()
    for i in range(len(text)):
        assert cut(text, [text[:i], text[i:]]) == whole


@given(st.text(alphabet="aZ .,!?。，\n5\"'*(“”…:;字的-", max_size=200), st.randoms())
@settings(max_examples=300, deadline=None)
def test_random_texts_in_random_pieces_give_the_same(text: str, chance: random.Random) -> None:
    pieces, rest = [], text
    while rest:
        size = chance.randint(1, 9)
        pieces.append(rest[:size])
        rest = rest[size:]
    whole = cut(text)
    assert cut(text, pieces) == whole
    assert "".join("".join(whole).split()) == "".join(text.split())


@pytest.mark.parametrize("unit", ["a", "[", "字", ". ", '"', "(", "，", "Dr. ", "\n", "1", "*_"])
def test_the_time_is_linear(unit: str) -> None:
    def seconds(count: int) -> float:
        segmenter = Segmenter()
        pieces = [unit * 50] * count
        begin = time.perf_counter()
        for piece in pieces:
            segmenter.feed(piece)
        segmenter.finish()
        return time.perf_counter() - begin

    seconds(50)
    ratio = min(seconds(800) / max(1e-4, seconds(200)) for _ in range(4))
    assert ratio < 8
