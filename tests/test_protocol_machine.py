"""Sequences of events that a client may think of, in any order, against a real server process
(hypothesis): what comes back is what a model of the protocol expects."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from wyoming.event import Event, async_read_event

from .harness import ServerProcess
from .test_hostile import MALFORMED

_TEXTS = ("Yes.", "The light is on.", "好的。", "One. Two. Three.", "", "😀", "21.5 °C")
_ANSWER_S = 5.0
_PENDING = 4
"""As many requests as a connection surely keeps."""
_PLACED = [name for name in MALFORMED if "side" in name or "pieces" in name]
"""Wrong by where they come; the rules below say so."""
_SYNTHESIZE = [name for name in MALFORMED if b'"synthesize", "data": {' in MALFORMED[name]]
"""Wrong as a request; a `synthesize` inside a stream is not looked at."""
_OUTER = [name for name in MALFORMED if name not in (*_PLACED, *_SYNTHESIZE)]


class Client(RuleBasedStateMachine):
    """One client, which comes back when it was let go."""

    server: ServerProcess

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.pending: list[bool] = []
        """Requests that are not answered yet: whether each is a stream."""
        self.inside = False
        self.started = False
        """Whether audio of the first pending request began."""
        self.connect()

    def connect(self) -> None:
        host, port = self.server.uri.removeprefix("tcp://").split(":")
        self.reader, self.writer = self.loop.run_until_complete(
            asyncio.open_connection(host, int(port))
        )
        self.pending, self.inside, self.started = [], False, False

    def send(self, kind: str, **data: Any) -> None:
        self.writer.write(json.dumps({"type": kind, "data": data}).encode() + b"\n")

    def read(self) -> Event | None:
        async def one() -> Event | None:
            async with asyncio.timeout(_ANSWER_S):
                return await async_read_event(self.reader)

        try:
            return self.loop.run_until_complete(one())
        except ConnectionError:
            return None

    def read_audio(self, event: Event) -> None:
        """Takes in an event that belongs to a request's answer."""
        assert self.pending, f"{event.type} though nothing was asked for"
        if event.type == "audio-start":
            assert not self.started
            self.started = True
        elif event.type == "audio-chunk":
            assert self.started and event.payload
        elif event.type == "audio-stop":
            assert self.started
            self.started = False
            if not self.pending[0]:
                self.pending.pop(0)
        else:
            assert event.type == "synthesize-stopped" and self.pending[0] and not self.started
            self.pending.pop(0)

    def read_until(self, kind: str) -> Event:
        while (event := self.read()) is not None:
            if event.type == kind:
                return event
            self.read_audio(event)
        raise AssertionError(f"closed before {kind}")

    def let_go(self) -> None:
        """The server must say that the request was bad, and close."""
        event = self.read_until("error")
        assert event.data["code"] == "bad_request"
        assert self.read() is None
        self.close()
        self.connect()

    def close(self) -> None:
        self.writer.transport.abort()
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule()
    def describe(self) -> None:
        self.send("describe")
        assert self.read_until("info").data["tts"][0]["name"] == "chattts"

    @rule(text=st.none() | st.text(max_size=20))
    def ping(self, text: str | None) -> None:
        self.send("ping", text=text)
        assert self.read_until("pong").data.get("text") == text

    @precondition(lambda self: len(self.pending) < _PENDING)
    @rule(text=st.sampled_from(_TEXTS), voice=st.sampled_from([None, "seed-2", "gone"]))
    def synthesize(self, text: str, voice: str | None) -> None:
        self.send("synthesize", text=text, **({"voice": {"name": voice}} if voice else {}))
        if not self.inside:
            self.pending.append(False)

    @precondition(lambda self: not self.inside and len(self.pending) < _PENDING)
    @rule(ssml=st.booleans())
    def start(self, ssml: bool) -> None:
        self.send("synthesize-start", **({"text_format": "ssml"} if ssml else {}))
        self.pending.append(True)
        self.inside = True

    @precondition(lambda self: self.inside)
    @rule(text=st.sampled_from(_TEXTS) | st.text(max_size=10))
    def chunk(self, text: str) -> None:
        self.send("synthesize-chunk", text=text)

    @precondition(lambda self: self.inside)
    @rule()
    def stop(self) -> None:
        self.send("synthesize-stop")
        self.inside = False

    @precondition(lambda self: self.pending and not self.inside)
    @rule()
    def listen(self) -> None:
        while self.pending:
            event = self.read()
            assert event is not None, "closed before all was said"
            self.read_audio(event)

    @rule(data=st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))
    def unknown(self, data: dict[str, Any]) -> None:
        self.send("detection", **{"names": [], "data": data})
        self.writer.write(b'{"type": "audio-chunk", "payload_length": 3}\n\0\n{')

    @rule(name=st.sampled_from(_OUTER))
    def malformed(self, name: str) -> None:
        self.writer.write(MALFORMED[name])
        self.let_go()

    @precondition(lambda self: not self.inside)
    @rule(name=st.sampled_from(_SYNTHESIZE))
    def malformed_request(self, name: str) -> None:
        self.malformed(name)

    @precondition(lambda self: self.inside)
    @rule()
    def start_twice(self) -> None:
        self.send("synthesize-start")
        self.let_go()

    @precondition(lambda self: not self.inside)
    @rule(kind=st.sampled_from(["synthesize-chunk", "synthesize-stop"]))
    def out_of_place(self, kind: str) -> None:
        self.send(kind, text="nowhere")
        self.let_go()

    @rule()
    def vanish(self) -> None:
        self.close()
        self.connect()

    def teardown(self) -> None:
        if self.inside:
            self.stop()
        self.listen()
        self.writer.write_eof()
        assert self.read() is None
        self.close()
        self.loop.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """With the fallback voice, and limits that the malformed events go beyond."""
    limits = [
        *("server.max_event_bytes=4096", "server.max_payload_bytes=10000"),
        *("server.max_json_depth=8", "server.max_stream_chunks=20", "model.download=false"),
        *("server.read_timeout_s=1", "model.retry_min_s=3600"),
    ]
    arguments = [part for limit in limits for part in ("--set", limit)]
    with ServerProcess(tmp_path, *arguments) as server:
        server.wait_for("speaking with the fallback voice")
        yield server


def test_any_sequence_of_events_is_answered_as_the_protocol_says(server: ServerProcess) -> None:
    machine = type("Client", (Client,), {"server": server})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            # shrinking would wait for each answer that does not come
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert server.stop() == 0
    faults = [line for line in server.lines if " ERROR " in line or "Traceback" in line]
    assert all("holds no ChatTTS model" in line for line in faults), faults
