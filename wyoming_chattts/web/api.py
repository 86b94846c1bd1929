"""What the studio page calls: speaking, keeping voices, the cache, live figures.

`speak` answers with frames: one byte of kind, the length as big-endian uint32, and the payload.
`h` is a JSON header, `a` 16-bit mono PCM, `t` the timings at the end, `e` an error instead.
"""

import asyncio
import json
import logging
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from ..config import VoiceConfig
from ..engine.base import SAMPLE_RATE
from ..errors import SpeechError, VoiceError
from ..metrics import CONTENT_TYPE, Timings
from ..speech import Speech, whole
from ..status import ServerStatus
from ..voice_folder import checked_definition, checked_name, dump, parse
from ..voices import Voice, Voices, portable
from .access import secure

_LOGGER = logging.getLogger(__name__)

_FRAME = struct.Struct(">cI")
_DRAFT = "draft"


class Refused(Exception):
    """Something that the page is told, with a status."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class Api:
    """The handlers."""

    def __init__(
        self,
        speech: Speech,
        voices: Voices,
        status: ServerStatus,
        clear_cache: Callable[[], Any],
    ) -> None:
        self._speech = speech
        self._voices = voices
        self._status = status
        self._clear_cache = clear_cache

    def routes(self) -> list[web.RouteDef]:
        """For `app.add_routes`."""
        return [
            web.get("/health", self.health),
            web.get("/metrics", self.metrics),
            web.get("/api/state", _told(self.state)),
            web.get("/api/live", _told(self.live)),
            web.post("/api/speak", _told(self.speak)),
            web.post("/api/voices", _told(self.keep)),
            web.patch("/api/voices/{name}", _told(self.change)),
            web.delete("/api/voices/{name}", _told(self.remove)),
            web.get("/api/voices/{name}/export", _told(self.export)),
            web.post("/api/import", _told(self.import_)),
            web.post("/api/restore", _told(self.restore)),
            web.post("/api/default", _told(self.default)),
            web.post("/api/cache/clear", _told(self.clear)),
        ]

    async def health(self, _request: web.Request) -> web.Response:
        """`ok`, `degraded` or `starting`, with reasons; status 503 if nothing could be spoken."""
        await self._status.refresh()
        health = self._status.health()
        answer = {"status": health.status, "reasons": list(health.reasons)}
        return web.json_response(answer, status=200 if health.speaking else 503)

    async def metrics(self, _request: web.Request) -> web.Response:
        """Prometheus's text form."""
        await self._status.refresh()
        return web.Response(
            body=self._status.metrics.text(), headers={"Content-Type": CONTENT_TYPE}
        )

    async def state(self, _request: web.Request) -> web.Response:
        """The voices."""
        default = self._voices.default.name
        return web.json_response(
            {
                "voices": [_described(v, v.name == default) for v in self._voices.all()],
                "problems": self._voices.problems,
                "folder": str(self._voices.folder.path),
            }
        )

    async def live(self, _request: web.Request) -> web.Response:
        """Live figures."""
        return web.json_response(await self._status.live())

    async def speak(self, request: web.Request) -> web.StreamResponse:
        """Speaks `text` with a `voice` by name, or with a `draft` that is no voice yet."""
        data = await _json(request)
        text = _text(data, "text")
        voice = await self._wanted(data)
        response = web.StreamResponse(
            headers={"Content-Type": "application/octet-stream", "X-Accel-Buffering": "no"}
        )
        secure(response)
        await response.prepare(request)

        async def send(kind: bytes, payload: bytes) -> None:
            await response.write(_FRAME.pack(kind, len(payload)) + payload)

        async def take(pcm: bytes) -> None:
            await send(b"a", pcm)

        timings = Timings()
        outcome = "gone"
        try:
            await send(b"h", _encoded({"rate": SAMPLE_RATE}))
            # a draft has no name by which a later warm-up could find it
            await self._speech.speak(
                whole(text), voice, take, remember=_DRAFT not in data, timings=timings
            )
            outcome = "ok"
            await send(b"t", _encoded(_timed(timings)))
        except SpeechError as error:
            outcome = error.code
            self._status.metrics.error(error.code, str(error))
            await send(b"e", _encoded({"code": error.code, "error": str(error)}))
        except ConnectionError:
            _LOGGER.debug("the page went away while it was spoken to")
        finally:
            self._status.metrics.request(outcome, timings)
        return response

    async def _wanted(self, data: dict[str, Any]) -> Voice:
        draft = data.get(_DRAFT)
        if draft is not None:
            definition = _definition(draft)
            return await asyncio.to_thread(lambda: self._voices.make(_DRAFT, definition))
        voice = self._voices.get(_text(data, "voice"))
        if voice is None:
            raise Refused("there is no such voice", 404)
        return voice

    async def keep(self, request: web.Request) -> web.Response:
        """Keeps a `draft` under a `name`."""
        data = await _json(request)
        name, definition = checked_name(_text(data, "name")), _definition(data.get(_DRAFT))
        await self._save(name, definition)
        return web.json_response({"name": name})

    async def _save(self, name: str, definition: VoiceConfig) -> None:
        if self._voices.get(name) is not None:
            raise Refused(f"there is a voice {name!r} already", 409)

        await asyncio.to_thread(self._voices.keep, name, definition)

    async def change(self, request: web.Request) -> web.Response:
        """Gives a voice another `name`, or another description, style, temperature or gain."""
        voice = self._own(request)
        data = await _json(request)
        new = checked_name(_text(data, "name")) if "name" in data else voice.name
        if new != voice.name and self._voices.get(new) is not None:
            raise Refused(f"there is a voice {new!r} already", 409)
        changes = data.get("changes", {})
        if not isinstance(changes, dict) or set(changes) - {
            "description",
            "style",
            "temperature",
            "gain_db",
            "sample_text",
        }:
            raise Refused("that cannot be changed")

        def change() -> None:
            was_default = voice.name == self._voices.default.name
            if changes:
                base = portable(voice).model_dump(exclude_defaults=True)
                definition = checked_definition(base | changes)
                self._voices.folder.save(voice.name, definition, replace=True)
            if new != voice.name:
                self._voices.folder.rename(voice.name, new)
            self._voices.refresh()
            if was_default and new != voice.name:
                self._voices.set_default(new)

        await asyncio.to_thread(change)
        return web.json_response({"name": new})

    async def remove(self, request: web.Request) -> web.Response:
        """Sets a voice aside; the answer's `undo` brings it back."""
        voice = self._own(request)

        def remove() -> str:
            token = self._voices.folder.remove(voice.name)
            self._voices.refresh()
            return token

        return web.json_response({"undo": await asyncio.to_thread(remove)})

    async def restore(self, request: web.Request) -> web.Response:
        """Brings a removed voice back."""
        token = _text(await _json(request), "undo")

        def restore() -> str:
            name = self._voices.folder.restore(token)
            self._voices.refresh()
            return name

        return web.json_response({"name": await asyncio.to_thread(restore)})

    async def default(self, request: web.Request) -> web.Response:
        """Chooses the default voice."""
        name = _text(await _json(request), "name")
        await asyncio.to_thread(lambda: self._voices.set_default(name))
        return web.json_response({"name": name})

    async def export(self, request: web.Request) -> web.Response:
        """A voice as a YAML file."""
        voice = self._voices.get(request.match_info["name"])
        if voice is None:
            raise Refused("there is no such voice", 404)
        text = await asyncio.to_thread(lambda: dump(portable(voice)))
        return web.Response(
            text=text,
            content_type="application/yaml",
            headers={"Content-Disposition": "attachment"},
        )

    async def import_(self, request: web.Request) -> web.Response:
        """Keeps the voice of a `.yaml`, `.pt` or `.txt` file, which is the request's body."""
        file = request.query.get("file", "")
        stem, _, suffix = file.rpartition(".")
        name = checked_name(stem)
        data = await request.read()

        def read() -> VoiceConfig:
            if suffix in ("pt", "txt"):
                from ..engine import speaker

                return VoiceConfig(embedding=speaker.to_string(speaker.from_bytes(data, file)))
            if suffix not in ("yaml", "yml"):
                raise VoiceError("a voice is a .yaml, .pt or .txt file")
            return _without_file(parse(data.decode("utf-8", "replace")))

        await self._save(name, await asyncio.to_thread(read))
        return web.json_response({"name": name})

    async def clear(self, _request: web.Request) -> web.Response:
        """Empties the cache."""
        return web.json_response({"removed": await self._clear_cache()})

    def _own(self, request: web.Request) -> Voice:
        """The voice of the path, if it is one of the folder."""
        voice = self._voices.get(request.match_info["name"])
        if voice is None:
            raise Refused("there is no such voice", 404)
        if voice.origin != "folder":
            raise Refused("only voices that were kept here can be changed", 409)
        return voice


def _told(
    handler: Callable[[web.Request], Any],
) -> Callable[[web.Request], Any]:
    """A handler whose errors are told to the page in JSON."""

    async def call(request: web.Request) -> web.StreamResponse:
        try:
            response: web.StreamResponse = await handler(request)
            return response
        except Refused as error:
            return web.json_response({"error": str(error)}, status=error.status)
        except VoiceError as error:
            return web.json_response({"error": str(error)}, status=400)
        except OSError as error:
            _LOGGER.error("the studio could not do what it was asked: %s", error)
            text = f"it could not be saved: {error.strerror or error}"
            return web.json_response({"error": text}, status=507)

    return call


async def _json(request: web.Request) -> dict[str, Any]:
    try:
        data = json.loads(await request.read())
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    if not isinstance(data, dict):
        raise Refused("not an object")
    return data


def _text(data: dict[str, Any], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Refused(f"{key} is missing")
    return value


def _definition(data: object) -> VoiceConfig:
    return _without_file(checked_definition(data))


def _without_file(definition: VoiceConfig) -> VoiceConfig:
    """A definition from a browser must not name files of the server."""
    if definition.file is not None:
        raise VoiceError("a voice from here cannot name a file")
    return definition


def _described(voice: Voice, default: bool) -> dict[str, Any]:
    source, style = voice.source, voice.style
    return {
        "name": voice.name,
        "description": voice.description,
        "origin": voice.origin,
        "default": default,
        "seed": source.seed,
        "recording": source.recording is not None,
        "style": {
            "speed": style.speed,
            "oral": style.oral,
            "laugh": style.laugh,
            "pause": style.pause,
        },
        "temperature": voice.temperature,
        "gain_db": voice.gain_db,
        "sample_text": source.sample_text,
    }


def _timed(timings: Timings) -> dict[str, Any]:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(1000 * seconds, 1)

    return {
        "queue_ms": ms(timings.queued),
        "first_audio_ms": ms(timings.first_audio),
        "total_ms": ms(timings.total),
        "audio_s": round(timings.audio, 3),
        "rtf": round(timings.total / timings.audio, 3) if timings.audio else None,
        "segments": timings.segments,
        "cache_hits": timings.cache_hits,
        "fallback": timings.fallback,
    }


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
