"""Who may use the studio.

Home Assistant's ingress gateway, which has checked its user (if `web.ingress` is set). Otherwise,
with `web.token` set, whoever has it: as a cookie after the login form, or as a bearer token.
Without a token, this machine alone, by a local host name, so that a page elsewhere cannot reach it
through a name that it points here (DNS rebinding). Whatever changes something needs a header that a
foreign page cannot send (CSRF).
"""

import asyncio
import hashlib
import ipaddress
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..config import WebConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

INGRESS_GATEWAY = "172.30.32.2"
HEADER = "X-Chattts-Studio"
"""Any value; its presence means that our own page, or a program, sent the request."""
_COOKIE = "chattts_studio"
_OPEN = ("/health", "/login")
_SAFE = ("GET", "HEAD")
_WRONG_TOKEN_PAUSE_S = 1.0
_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
_LOGIN_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>ChatTTS voice studio</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="static/studio.css"></head>
<body><main class="login"><h1>ChatTTS voice studio</h1>
<form method="post" action="login"><label for="token">Token (the setting web.token) · 令牌</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button type="submit">Open · 打开</button></form><p role="status">%s</p></main></body></html>
"""

_NO_TOKEN = (
    "Only the machine that the server runs on is let in, until the setting web.token is set. · "
    "在设置 web.token 之前，只能从服务器本机访问。"
)


class Access:
    """Checks requests against the settings."""

    def __init__(self, config: WebConfig) -> None:
        self._token = config.token
        self._ingress = config.ingress
        self._cookie = _digest(config.token) if config.token else ""

    def middleware(self) -> Middleware:
        """For `web.Application(middlewares=…)`."""

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await self._check(request, handler)
            if not response.prepared:
                secure(response)
            return response

        return check

    async def _check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        public = request.path in _OPEN or request.path == "/static/studio.css"
        if not public and not self._allowed(request):
            if request.path == "/":
                return self._login_page("" if self._token is not None else _NO_TOKEN, 401)
            return web.json_response({"error": "not allowed"}, status=401)
        if (
            request.method not in _SAFE
            and request.path != "/login"
            and HEADER not in request.headers
        ):
            return web.json_response({"error": f"the header {HEADER} is missing"}, status=403)
        try:
            return await handler(request)
        except web.HTTPException as error:
            return web.json_response({"error": error.reason}, status=error.status)

    def _allowed(self, request: web.Request) -> bool:
        peer = request.remote or ""
        if self._ingress and peer == INGRESS_GATEWAY:
            return True
        if self._token is not None:
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            cookie = request.cookies.get(_COOKIE, "")
            return _equal(given, self._token) or _equal(cookie, self._cookie)
        return _is_loopback(peer) and _is_local_name(request.host)

    async def login(self, request: web.Request) -> web.StreamResponse:
        """Takes the form of the login page."""
        given = str((await request.post()).get("token", ""))
        if self._token is None or not _equal(given, self._token):
            # guessing is slow; the token has 8 characters at least
            await asyncio.sleep(_WRONG_TOKEN_PAUSE_S)
            return self._login_page("That is not the token. · 令牌不正确。", 401)
        response = web.Response(status=303, headers={"Location": "./"})
        response.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="Strict", path="/")
        return response

    def _login_page(self, message: str, status: int) -> web.Response:
        return web.Response(text=_LOGIN_PAGE % message, content_type="text/html", status=status)


def secure(response: web.StreamResponse) -> None:
    """Headers that keep a browser to what the page is."""
    headers = response.headers
    headers["Content-Security-Policy"] = _CSP
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers.setdefault("Cache-Control", "no-store")


def _digest(token: str) -> str:
    return hashlib.sha256(f"studio {token}".encode()).hexdigest()


def _equal(a: str, b: str) -> bool:
    return secrets.compare_digest(a.encode(), b.encode())


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer.split("%")[0]).is_loopback
    except ValueError:
        return False


def _is_local_name(host: str) -> bool:
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    return name == "localhost" or _is_loopback(name)
