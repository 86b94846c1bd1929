"""Serves the studio beside the Wyoming server."""

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from ..config import WebConfig
from ..speech import Speech
from ..status import ServerStatus
from ..voices import Voices
from .access import Access
from .api import Api

_LOGGER = logging.getLogger(__name__)

_STATIC = Path(__file__).with_name("static")
_BODY_LIMIT = 1_500_000
_SHUTDOWN_S = 1.0


@contextlib.asynccontextmanager
async def studio(
    config: WebConfig,
    speech: Speech,
    voices: Voices,
    status: ServerStatus,
    clear_cache: Callable[[], Any],
) -> AsyncIterator[str | None]:
    """Serves inside the block; gives the address, or None where it is taken. A studio that cannot
    be served costs a warning, never speech."""
    access = Access(config)
    app = web.Application(middlewares=[access.middleware()], client_max_size=_BODY_LIMIT)
    app.add_routes(Api(speech, voices, status, clear_cache).routes())
    app.router.add_post("/login", access.login)
    app.router.add_get("/", _page)
    app.router.add_static("/static", _STATIC)
    # a page that goes away must not be spoken to any longer
    runner = web.AppRunner(
        app, access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
    )
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, config.host, config.port).start()
        except OSError as error:
            _LOGGER.warning("no voice studio on port %d: %s", config.port, error)
            yield None
            return
        port = runner.addresses[0][1]
        host = "127.0.0.1" if config.host in ("0.0.0.0", "") else config.host
        uri = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        _LOGGER.info("voice studio on %s", uri)
        if config.token is None and not config.ingress and config.host not in _LOOPBACK:
            _LOGGER.warning("web.host lets others in, but without web.token nobody will be")
        yield uri
    finally:
        await runner.cleanup()


_LOOPBACK = ("127.0.0.1", "::1", "localhost")


async def _page(_request: web.Request) -> web.StreamResponse:
    return web.FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})
