"""What the fuzzer found is thrown at the handler again; and the fuzzer's eyes are open."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from wyoming_chattts.handler import Connection

from .fuzz.protocol import Broken, Target, check

CORPUS = sorted((Path(__file__).parent / "fuzz" / "corpus").iterdir())


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """One for all inputs, as the fuzzer has it."""
    target = Target()
    yield target
    target.close()


def test_the_corpus_breaks_nothing(target: Target) -> None:
    reached: set[str] = set()
    for path in CORPUS:
        try:
            reached |= set(target.run(path.read_bytes()))
        except Broken as error:
            pytest.fail(f"{path.name}: {error}")
    # the corpus speaks to all of the handler
    assert reached == {
        *("info", "pong", "error"),
        *("audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"),
    }


def test_an_exception_in_the_handler_is_seen(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("text")

    monkeypatch.setattr(Connection, "_handle", fail)
    with pytest.raises(Broken, match="a connection failed"):
        target.run(b'{"type": "ping"}\n')


def test_a_task_that_is_left_is_seen(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[asyncio.Task[None]] = []

    async def linger(*_: object) -> None:
        kept.append(asyncio.create_task(asyncio.sleep(3600)))

    monkeypatch.setattr(Connection, "_handle", linger)
    with pytest.raises(Broken, match="left running"):
        target.run(b'{"type": "ping"}\n')
    kept[0].cancel()
    monkeypatch.undo()
    assert target.run(b'{"type": "ping"}\n') == ["pong"]


def _events(*types: str) -> bytes:
    lines = []
    for kind in types:
        payload = b"\0\0" if kind == "audio-chunk" else b""
        data = {"code": "bad_request"} if kind == "error" else {}
        header = {"type": kind, "data_length": len(json.dumps(data))}
        header["payload_length"] = len(payload)
        lines.append(json.dumps(header).encode() + b"\n" + json.dumps(data).encode() + payload)
    return b"".join(lines)


@pytest.mark.parametrize(
    ("types", "wrong"),
    [
        ("audio-start audio-chunk audio-stop synthesize-stopped", ""),
        ("audio-start pong audio-chunk info audio-stop", ""),
        ("audio-start audio-chunk error", ""),
        ("error audio-stop", "after an error"),
        ("audio-chunk", "outside of audio"),
        ("audio-stop", "outside of audio"),
        ("audio-start audio-start", "inside audio"),
        ("pong synthesize-stopped", "without audio"),
    ],
)
def test_the_order_of_what_is_written_is_checked(types: str, wrong: str) -> None:
    if wrong:
        with pytest.raises(Broken, match=wrong):
            check(_events(*types.split()))
    else:
        assert check(_events(*types.split())) == types.split()
