"""A hub on loopback that serves one repository's files, as huggingface_hub asks for them."""

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Serves `folder`; `gate` holds downloads up, `refuse` answers 503 that many times first."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.gate = threading.Event()
        self.gate.set()
        self.refuse = 0
        self.requests: list[str] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub = self.server
        hub.requests.append(f"{self.command} {self.path}")
        match = re.fullmatch(r"/2Noise/ChatTTS/resolve/[^/]+/(.+)", self.path)
        path = hub.folder / match.group(1) if match else None
        if hub.refuse > 0:
            hub.refuse -= 1
            self._head(503, 0)
            return
        if path is None or not path.is_file():
            self._head(404, 0)
            return
        hub.gate.wait(60)
        data = path.read_bytes()
        first = 0
        if (wanted := self.headers.get("Range")) and (m := re.match(r"bytes=(\d+)-", wanted)):
            first = int(m.group(1))
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            with contextlib.suppress(OSError):
                self.wfile.write(data[first:])

    def _head(self, status: int, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextlib.contextmanager
def fake_hub(folder: Path) -> Iterator[FakeHub]:
    """A running hub."""
    hub = FakeHub(folder)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.gate.set()
        hub.shutdown()
        hub.server_close()
        thread.join()
