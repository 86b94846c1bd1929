"""Peers that are slow, broken or hostile, against the real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from wyoming.client import AsyncClient
from wyoming.tts import Synthesize

from .harness import RunningServer, assert_whole, describe, eventually, running_server, say

LIMITS = {
    "server.max_event_bytes": 4096,
    "server.max_payload_bytes": 10_000,
    "server.read_timeout_s": 0.3,
    "server.idle_timeout_s": 0.3,
    "server.max_connections": 4,
    "server.max_json_depth": 8,
    "server.max_stream_chunks": 20,
    "model.download": False,
}


@pytest.fixture
async def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[RunningServer]:
    """A server with the fallback voice, which is enough for what peers can do to the protocol."""
    async with running_server(monkeypatch, None, data_dir=str(tmp_path), **LIMITS) as running:
        await eventually(lambda: running.server.speech.fallback is not None)
        yield running


async def _send(running: RunningServer, data: bytes, *, end: bool = False) -> list[dict[str, Any]]:
    """Headers of what comes back for raw bytes, up to the end of the connection."""
    port = int(running.uri.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    if end:
        writer.write_eof()
    headers = []
    try:
        async with asyncio.timeout(10):
            while line := await reader.readline():
                header = json.loads(line)
                body = await reader.readexactly(header.get("data_length", 0))
                await reader.readexactly(header.get("payload_length", 0))
                header["data"] = json.loads(body) if body else {}
                headers.append(header)
    except ConnectionResetError:
        pass
    finally:
        writer.close()
    return headers


MALFORMED = {
    "no JSON": b"hello\n",
    "a number": b"5\n",
    "a list": b"[]\n",
    "no type": b"{}\n",
    "a type that is a list": b'{"type": []}\n',
    "a long type": json.dumps({"type": "x" * 1000}).encode() + b"\n",
    "data that is a list": b'{"type": "synthesize", "data": [1]}\n',
    "data that is text": b'{"type": "synthesize", "data": "x"}\n',
    "no text": b'{"type": "synthesize", "data": {}}\n',
    "text that is a number": b'{"type": "synthesize", "data": {"text": 5}}\n',
    "text that is a list": b'{"type": "synthesize", "data": {"text": ["a"]}}\n',
    "voice that is a list": b'{"type": "synthesize", "data": {"text": "a", "voice": []}}\n',
    "voice name that is a number": (
        b'{"type": "synthesize", "data": {"text": "a", "voice": {"name": 5}}}\n'
    ),
    "a negative length": b'{"type": "ping", "data_length": -1}\n',
    "a length that is text": b'{"type": "ping", "data_length": "9"}\n',
    "a length that is true": b'{"type": "ping", "data_length": true}\n',
    "a length that is a fraction": b'{"type": "ping", "data_length": 1.5}\n',
    "a huge length": b'{"type": "ping", "data_length": 99999999999}\n',
    "a huge payload": b'{"type": "ping", "payload_length": 99999999999}\n',
    "data that is no JSON": b'{"type": "ping", "data_length": 3}\nabc',
    "data that is a number": b'{"type": "ping", "data_length": 1}\n5',
    "a deep list": b'{"type": "ping", "data": ' + b"[" * 3000 + b"\n",
    "a list a little too deep": b'{"type": "ping", "data": {"a": ' + b"[" * 8 + b"]" * 8 + b"}}\n",
    "data too deep": b'{"type": "ping", "data_length": 58}\n{"a": '
    + b'{"a": ' * 7
    + b"{}"
    + b"}" * 8,
    "too many pieces": (
        b'{"type": "synthesize-start"}\n'
        + b'{"type": "synthesize-chunk", "data": {"text": ""}}\n' * 21
    ),
    "a long header": b'{"type": "ping", "data": {"text": "' + b"a" * 20_000 + b'"}}\n',
    "a header without end": b"a" * 20_000,
    "bytes that are no text": b"\xff\xfe\x00\n",
    "a chunk outside of a stream": b'{"type": "synthesize-chunk", "data": {"text": "a"}}\n',
    "a stop outside of a stream": b'{"type": "synthesize-stop"}\n',
    "a start inside a stream": b'{"type": "synthesize-start"}\n{"type": "synthesize-start"}\n',
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_events_get_an_error_and_the_connection_ends(
    name: str, running: RunningServer
) -> None:
    headers = await _send(running, MALFORMED[name])
    assert [h["type"] for h in headers] == ["error"]
    assert headers[0]["data"]["code"] == "bad_request"
    assert_whole(await say(running.uri, "Still here."))


async def test_an_event_may_nest_and_a_stream_may_have_pieces_up_to_the_limits(
    running: RunningServer,
) -> None:
    data = b'{"type": "ping", "data": {"a": ' + b"[" * 6 + b"]" * 6 + b"}}\n"
    data += b'{"type": "synthesize-start"}\n'
    data += b'{"type": "synthesize-chunk", "data": {"text": "a "}}\n' * 20
    headers = await _send(running, data + b'{"type": "synthesize-stop"}\n')
    assert headers[0]["type"] == "pong" and headers[-1]["type"] == "synthesize-stopped"


async def test_a_peer_that_breaks_the_protocol_has_one_line_in_the_log(
    running: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        assert await _send(running, b"no event\n") != []
    assert caplog.text.count("refusing an event of 127.0.0.1: an event's header is not JSON") == 1


async def test_unknown_events_and_payloads_are_passed_over(running: RunningServer) -> None:
    data = (
        b'{"type": "detection", "data": {"x": [1, 2]}}\n'
        b'{"type": "audio-chunk", "payload_length": 5}\nabcde'
        b'{"type": "select-program", "data": {"name": "chattts"}}\n'
        b'{"type": "ping"}\n'
    )
    assert [h["type"] for h in await _send(running, data, end=True)] == ["pong"]


async def test_a_peer_that_sends_a_byte_at_a_time_is_let_go(running: RunningServer) -> None:
    port = int(running.uri.rsplit(":", 1)[1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def trickle() -> None:
        for byte in b'{"type": "describe", "version": "1.10.2 and a long tail of nothing"':
            writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    task = asyncio.create_task(trickle())
    line = json.loads(await asyncio.wait_for(reader.readline(), 10))
    assert line["type"] == "error"
    task.cancel()
    writer.close()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_idle_peer_is_let_go_without_a_word(running: RunningServer) -> None:
    assert await _send(running, b'{"type": "describe"}\n') != []
    assert await _send(running, b"") == []


async def test_a_stream_that_is_never_ended_gets_a_timeout(running: RunningServer) -> None:
    headers = await _send(running, b'{"type": "synthesize-start"}\n')
    assert headers[-1]["type"] == "error"
    assert headers[-1]["data"]["code"] == "timeout"


async def test_connections_over_the_limit_are_refused_at_once(running: RunningServer) -> None:
    port = int(running.uri.rsplit(":", 1)[1])
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
    await eventually(lambda: len(running.server._connections) == 4)
    headers = await _send(running, b'{"type": "describe"}\n')
    assert [h["data"]["code"] for h in headers] == ["busy"]
    for _, writer in held:
        writer.close()
    await eventually(lambda: not running.server._connections)
    assert (await describe(running.uri)).tts


async def test_a_peer_that_goes_in_the_middle_of_an_event_is_forgotten(
    running: RunningServer,
) -> None:
    for data in (b'{"type": "syn', b'{"type": "ping", "data_length": 10}\nabc'):
        assert await _send(running, data, end=True) == []
    await eventually(lambda: not running.server._connections)


async def test_many_requests_on_one_connection_are_bounded(running: RunningServer) -> None:
    event = b'{"type": "synthesize", "data": {"text": "One of very many requests."}}\n'
    headers = await _send(running, event * 200)
    assert headers[-1]["data"]["code"] == "busy"


async def test_a_stalled_listener_delays_nobody_and_is_let_go(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limits = LIMITS | {
        "server.write_timeout_s": 0.5,
        "server.idle_timeout_s": 30,
        "text.max_chars": 100_000,
    }
    async with running_server(monkeypatch, None, data_dir=str(tmp_path), **limits) as running:
        await eventually(lambda: running.server.speech.fallback is not None)
        port = int(running.uri.rsplit(":", 1)[1])
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        text = " ".join(f"Sentence number {i} of very many of them." for i in range(60))
        event = {"type": "synthesize-start"}, {"type": "synthesize-chunk", "data": {"text": text}}
        for part in event * 1:
            writer.write(json.dumps(part).encode() + b"\n")
        for _ in range(20):
            writer.write(json.dumps(event[1]).encode() + b"\n")
        await eventually(lambda: running.server.speech.active == 1)
        assert_whole(await say(running.uri, "Somebody else."))
        await eventually(lambda: running.server.speech.active == 0)
        assert running.outcomes == {"ok": 1, "gone": 1}
        writer.close()


async def test_a_text_that_espeak_crashes_at_costs_nobody_the_server(
    running: RunningServer,
) -> None:
    """It did: the C library lay in the server's process."""
    for _, text in json.loads((Path(__file__).parent / "fuzz" / "espeak.json").read_text("utf-8")):
        hostile, other = await asyncio.gather(
            say(running.uri, text[:400]), say(running.uri, "The light is on.")
        )
        assert_whole(hostile)
        assert_whole(other)


async def test_text_of_the_household_is_not_logged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running_server(monkeypatch, None, data_dir=str(tmp_path), **LIMITS) as running:
        await eventually(lambda: running.server.speech.fallback is not None)
        async with AsyncClient.from_uri(running.uri) as client:
            await client.write_event(Synthesize("Zanzibar is a secret.").event())
            while (event := await client.read_event()) is not None and event.type != "audio-stop":
                pass
    assert "ok: voice" in caplog.text
    assert "anzibar" not in caplog.text
