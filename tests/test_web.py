"""The studio's interface: who may use it, what it keeps, what it says when it cannot."""

import errno
import io
import json
import os
import re
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from wyoming_chattts.config import (
    Config,
    EngineConfig,
    SamplingConfig,
    StreamConfig,
    WebConfig,
)
from wyoming_chattts.engine import speaker
from wyoming_chattts.engine.base import Engine
from wyoming_chattts.engine.checkpoint import open_checkpoint
from wyoming_chattts.engine.fast import FastEngine
from wyoming_chattts.web import access

from .harness import RunningServer, describe, equal, eventually, running_server, say

OURS = {access.HEADER: "1"}


@pytest.fixture
async def running(
    monkeypatch: pytest.MonkeyPatch, tiny_dir: Path, tmp_path: Path
) -> AsyncIterator[RunningServer]:
    def make(config: Config) -> Engine:
        return FastEngine(
            open_checkpoint(tiny_dir), EngineConfig(slots=2), SamplingConfig(), StreamConfig()
        )

    settings = {"web.enabled": True, "web.port": 0, "data_dir": str(tmp_path)}
    async with running_server(monkeypatch, make, **settings) as running:
        yield running


@pytest.fixture
async def http(running: RunningServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(running.server.studio_uri, headers=OURS) as session:
        yield session


async def frames(response: aiohttp.ClientResponse) -> list[tuple[str, bytes]]:
    data, found, at = await response.read(), [], 0
    while at < len(data):
        kind, size = struct.unpack_from(">cI", data, at)
        found.append((kind.decode(), data[at + 5 : at + 5 + size]))
        at += 5 + size
    return found


def voices_of(state: dict[str, Any]) -> list[str]:
    return [voice["name"] for voice in state["voices"]]


async def test_speaks_what_the_wyoming_server_speaks(
    running: RunningServer, http: aiohttp.ClientSession
) -> None:
    async with http.post("/api/speak", json={"text": "It is late.", "voice": "seed-42"}) as r:
        kinds = await frames(r)
    assert (kinds[0][0], kinds[-1][0]) == ("h", "t")
    pcm = b"".join(payload for kind, payload in kinds if kind == "a")
    assert equal(pcm, (await say(running.uri, "It is late.", "seed-42")).pcm)
    timings = json.loads(kinds[-1][1])
    assert timings["audio_s"] == pytest.approx(len(pcm) / 48_000, abs=1e-3)
    assert timings["queue_ms"] >= 0 and timings["rtf"] > 0 and timings["segments"] == 1
    assert running.outcomes == {"ok": 2}


async def test_a_kept_draft_sounds_as_it_did(
    running: RunningServer, http: aiohttp.ClientSession
) -> None:
    draft = {"seed": 99, "temperature": 0.5, "style": {"speed": 3}, "gain_db": 2}
    async with http.post("/api/speak", json={"text": "It is late.", "draft": draft}) as r:
        heard = b"".join(p for k, p in await frames(r) if k == "a")
    async with http.post("/api/voices", json={"name": "厨房", "draft": draft}) as r:
        assert r.status == 200
    assert equal((await say(running.uri, "It is late.", "厨房")).pcm, heard)
    assert "厨房" in [v.name for v in (await describe(running.uri)).tts[0].voices]
    async with http.get("/api/voices/厨房/export") as r:
        text = await r.text()
        assert "attachment" in r.headers["Content-Disposition"]
    async with http.post("/api/import?file=copy.yaml", data=text.encode()) as r:
        assert r.status == 200
    assert equal((await say(running.uri, "It is late.", "copy")).pcm, heard)


async def test_changes_keep_what_they_do_not_name(
    running: RunningServer, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    folder = tmp_path / "voices"
    folder.mkdir()
    (folder / "friend.txt").write_text(speaker.to_string(speaker.from_seed(5)))
    await eventually(lambda: running.server._voices.get("friend") is not None)
    changes = {"description": "calm", "style": {"speed": 4}}
    async with http.patch("/api/voices/friend", json={"name": "pal", "changes": changes}) as r:
        assert (await r.json()) == {"name": "pal"}
    voice = running.server._voices.get("pal")
    assert voice is not None and voice.embedding == speaker.from_seed(5)
    assert voice.description == "calm" and voice.style.speed == 4
    for bad in ({"file": "/etc/passwd"}, {"seed": 3}, {"style": {"speed": 12}}, [1]):
        async with http.patch("/api/voices/pal", json={"changes": bad}) as r:
            assert r.status == 400, bad
    assert running.server._voices.get("pal") is voice


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/voices", b"{", 400),
        ("POST", "/api/voices", b"[" * 100_000, 400),
        ("POST", "/api/voices", b"[]", 400),
        ("POST", "/api/voices", b'{"draft": {"seed": 1}}', 400),
        ("POST", "/api/voices", b'{"name": "a/b", "draft": {"seed": 1}}', 400),
        ("POST", "/api/voices", b'{"name": "..", "draft": {"seed": 1}}', 400),
        ("POST", "/api/voices", b'{"name": "x", "draft": {}}', 400),
        ("POST", "/api/voices", b'{"name": "x", "draft": {"seed": -1}}', 400),
        ("POST", "/api/voices", b'{"name": "x", "draft": {"seed": 1, "other": 1}}', 400),
        ("POST", "/api/voices", b'{"name": "x", "draft": {"file": "/etc/passwd"}}', 400),
        ("POST", "/api/voices", b'{"name": "x", "draft": {"embedding": "abc"}}', 400),
        ("POST", "/api/voices", b'{"name": "seed-2", "draft": {"seed": 1}}', 409),
        ("DELETE", "/api/voices/seed-2", b"", 409),
        ("DELETE", "/api/voices/none", b"", 404),
        ("DELETE", "/api/voices/..%2f..%2fetc", b"", 404),
        ("PATCH", "/api/voices/seed-2", b'{"name": "x"}', 409),
        ("POST", "/api/default", b'{"name": "none"}', 400),
        ("POST", "/api/restore", b'{"undo": "../.."}', 400),
        ("POST", "/api/restore", b'{"undo": "123"}', 400),
        ("POST", "/api/import?file=x.exe", b"MZ", 400),
        ("POST", "/api/import?file=x.pt", b"cos\nsystem\n(S'false'\ntR.", 400),
        ("POST", "/api/import?file=x.yaml", b"- a\n- b", 400),
        ("POST", "/api/import?file=x.yaml", b"!!python/object/apply:os.system ['false']", 400),
        ("POST", "/api/import?file=x.yaml", b"file: /etc/passwd", 400),
        ("POST", "/api/import?file=x.yaml", b"a" * 2_000_000, 413),
        ("POST", "/api/speak", b'{"text": "hi"}', 400),
        ("POST", "/api/speak", b'{"text": "hi", "voice": "none"}', 404),
        ("POST", "/api/speak", b'{"text": " ", "voice": "seed-2"}', 400),
        ("GET", "/api/nothing", b"", 404),
        ("GET", "/static/../app.py", b"", 404),
        ("GET", "/static/%2e%2e/app.py", b"", 404),
    ],
)
async def test_what_cannot_be_is_refused(
    http: aiohttp.ClientSession,
    running: RunningServer,
    method: str,
    path: str,
    body: bytes,
    status: int,
) -> None:
    before = (await describe(running.uri)).tts[0].voices
    async with http.request(method, path, data=io.BytesIO(body)) as response:
        assert response.status == status
        assert (await response.json())["error"]
    assert (await describe(running.uri)).tts[0].voices == before


async def test_a_disk_that_is_full_leaves_the_old_voice(
    running: RunningServer, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http.post("/api/voices", json={"name": "x", "draft": {"seed": 1}}) as r:
        assert r.status == 200

    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    async with http.patch("/api/voices/x", json={"changes": {"description": "new"}}) as r:
        assert r.status == 507
        assert "No space left" in (await r.json())["error"]
    folder = running.server._voices.folder.path
    assert (folder / "x.yaml").read_text() == "seed: 1\n"
    assert [file.name for file in folder.iterdir()] == ["x.yaml"]


async def test_a_default_that_was_chosen_holds_until_it_is_deleted(
    running: RunningServer, http: aiohttp.ClientSession
) -> None:
    async with http.post("/api/voices", json={"name": "mine", "draft": {"seed": 1}}) as r:
        assert r.status == 200
    async with http.post("/api/default", json={"name": "mine"}) as r:
        assert r.status == 200
    async with http.get("/api/state") as r:
        assert voices_of(await r.json())[0] == "mine"
    async with http.delete("/api/voices/mine") as r:
        undo = (await r.json())["undo"]
    async with http.get("/api/state") as r:
        assert voices_of(await r.json())[0] == "seed-2"
    async with http.post("/api/restore", json={"undo": undo}) as r:
        assert (await r.json()) == {"name": "mine"}
    async with http.get("/api/state") as r:
        assert voices_of(await r.json())[0] == "mine"


async def test_a_page_that_goes_away_ends_the_work(
    running: RunningServer, http: aiohttp.ClientSession
) -> None:
    text = "This goes on and on for quite some while. " * 40
    async with http.post("/api/speak", json={"text": text, "voice": "seed-2"}) as r:
        await r.content.readany()
        r.close()
    await eventually(lambda: running.server.speech.active == 0)
    worker = running.server.speech.worker
    assert worker is not None
    await eventually(lambda: worker.running == 0)
    assert running.outcomes == {"gone": 1}


async def test_metrics_count_what_happened(
    running: RunningServer, http: aiohttp.ClientSession
) -> None:
    for _ in range(2):
        await say(running.uri, "It is late.")
    async with http.get("/metrics") as r:
        assert r.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = dict(
            line.rsplit(" ", 1) for line in (await r.text()).splitlines() if line[0] != "#"
        )
    assert lines['chattts_requests_total{outcome="ok"}'] == "2.0"
    assert lines["chattts_cache_hits_total"] == "1.0"
    assert lines["chattts_first_audio_seconds_count"] == "2.0"
    assert float(lines["chattts_decode_steps_total"]) > 4
    assert float(lines["chattts_resident_memory_bytes"]) > 1e8
    assert lines["chattts_model_loaded"] == "1.0"


async def test_health_says_what_is_wrong(
    running: RunningServer, http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    async with http.get("/health") as r:
        assert (r.status, await r.json()) == (200, {"status": "ok", "reasons": []})

    def fail(_count: int) -> None:
        raise RuntimeError("boom")

    running.engine.before_burst = fail
    await say(running.uri, "It is late.")
    async with http.get("/health") as r:
        answer = await r.json()
    assert answer["status"] == "degraded" and "engine failed" in answer["reasons"][0]
    async with http.get("/api/live") as r:
        live = await r.json()
    assert live["errors"][0]["code"] == "engine_failed"
    assert live["outcomes"] == {"engine_failed": 1}


async def test_without_a_model_health_is_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = {
        "web.enabled": True,
        "web.port": 0,
        "data_dir": str(tmp_path),
        "model.download": False,
    }
    for fallback, status in ((True, 200), (False, 503)):
        settings = base | {"fallback.enabled": fallback}
        async with (
            running_server(monkeypatch, None, **settings) as running,
            aiohttp.ClientSession() as session,
        ):
            await eventually(lambda: running.server.studio_uri is not None)
            if fallback:
                await eventually(lambda: running.server.speech.fallback is not None)
            async with session.get(f"{running.server.studio_uri}health") as r:
                assert r.status == status
                assert (await r.json())["status"] == "starting"


async def test_without_a_token_only_this_machine_is_let_in(running: RunningServer) -> None:
    uri = str(running.server.studio_uri)
    port = uri.rstrip("/").rsplit(":", 1)[1]
    async with aiohttp.ClientSession() as session:
        for host, status in (
            (f"127.0.0.1:{port}", 200),
            (f"localhost:{port}", 200),
            ("[::1]", 200),
            (f"evil.example:{port}", 401),
            (f"127.0.0.1.evil.example:{port}", 401),
        ):
            async with session.get(f"{uri}api/state", headers={"Host": host}) as r:
                assert r.status == status, host
        # what changes something wants the header that foreign pages cannot send
        for method in ("post", "delete", "patch", "put"):
            async with session.request(method, f"{uri}api/voices", data=b"{}") as r:
                assert r.status == 403
        async with session.get(uri) as r:
            assert "default-src 'none'" in r.headers["Content-Security-Policy"]
            assert r.headers["X-Content-Type-Options"] == "nosniff"
            text = await r.text()
    assert "http://" not in text and "https://" not in text and "//" not in text


def test_the_page_calls_by_relative_addresses() -> None:
    """Ingress serves it under a path of its own."""
    static = Path(access.__file__).with_name("static")
    for file in static.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"""(href|src|action)=["']/""", text), file
        assert not re.search(r"""(call|fetch|from|import)\(?\s*["'`]/""", text), file
        assert not re.search(r"https?://", text), file


def request(peer: str, host: str = "somewhere") -> Any:
    """As much of a request as the check looks at."""
    return SimpleNamespace(remote=peer, host=host, headers={}, cookies={})


def test_others_are_let_in_by_ingress_alone() -> None:
    gateway = request(access.INGRESS_GATEWAY)
    assert not access.Access(WebConfig())._allowed(gateway)
    ingress = access.Access(WebConfig(ingress=True))
    assert ingress._allowed(gateway)
    assert not ingress._allowed(request("172.30.32.3"))
    assert not ingress._allowed(request("192.168.1.5", "127.0.0.1"))
    assert ingress._allowed(request("::1", "localhost:1"))


async def test_with_a_token_everybody_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(access, "_WRONG_TOKEN_PAUSE_S", 0.01)
    settings = {
        "web.enabled": True,
        "web.port": 0,
        "web.token": "open sesame",
        "data_dir": str(tmp_path),
        "model.download": False,
    }
    async with running_server(monkeypatch, None, **settings) as running:
        await eventually(lambda: running.server.studio_uri is not None)
        uri = str(running.server.studio_uri)
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(uri, cookie_jar=jar) as session:
            async with session.get("/api/state") as r:
                assert r.status == 401
            async with session.get("/metrics") as r:
                assert r.status == 401
            async with session.get("/health") as r:
                assert r.status == 200
            bearer = {"Authorization": "Bearer open sesame"}
            async with session.get("/metrics", headers=bearer) as r:
                assert r.status == 200
            async with session.get("/") as r:
                assert r.status == 401 and "<form" in await r.text()
            async with session.post("/login", data={"token": "wrong"}) as r:
                assert r.status == 401
            async with session.post("/login", data={"token": "open sesame"}) as r:
                assert r.status == 200 and 'id="voices"' in await r.text()
            async with session.get("/api/state") as r:
                assert r.status == 200
            (cookie,) = jar
            assert cookie["httponly"] and cookie["samesite"] == "Strict"
            assert "sesame" not in cookie.value


async def test_a_port_that_is_taken_costs_the_studio_alone(
    running: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    port = str(running.server.studio_uri).rstrip("/").rsplit(":", 1)[1]
    settings = {"web.enabled": True, "web.port": int(port), "data_dir": str(tmp_path / "b")}
    async with running_server(monkeypatch, None, **settings) as other:
        await eventually(lambda: other.server.speech.fallback is not None)
        assert other.server.studio_uri is None
        assert (await say(other.uri, "It is late.")).pcm
