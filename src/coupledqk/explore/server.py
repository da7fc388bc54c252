"""The live explorer: a typed text in, its bundle out.

    GET  /          the page
    POST /bundle    {"text": "..."} as JSON gives the bundle, or {"error": "..."}

No path and no name from a request is ever opened, and nothing is stored.
"""

import errno
import ipaddress
import json
import sys
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from ..errors import CoupledQKError
from .bundle import Reader, make_bundle
from .page import as_json, render

MOST_BYTES = 100_000


class Server(ThreadingHTTPServer):
    """Listens on this machine alone unless `host` says otherwise; port 0 takes any free one."""

    daemon_threads = True

    def __init__(
        self, readers: Sequence[Reader], text: str, host: str = "127.0.0.1", port: int = 8000, cut: bool = False
    ) -> None:
        self.readers, self.cut = readers, cut
        self.reading = Lock()
        self.page = render(self.bundle(text), live_text=text).encode()
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(host, port, error) from None

    def bundle(self, text: str) -> dict[str, Any]:
        with self.reading:  # a recording holds one forward pass, and memory one text's maps
            return make_bundle(self.readers, text, self.cut)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a browser may hang up when it likes
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_port}/"


def is_local(host: Any) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _cannot_listen(host: str, port: int, error: Exception) -> CoupledQKError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return CoupledQKError(f"port {port} of {host} is in use: choose another with --port, or 0 for any free one")
    return CoupledQKError(f"cannot listen on port {port} of {host} ({error}): choose another --port or --host")


class RequestError(Exception):
    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "coupledqk", ""
    timeout = 30

    def do_GET(self) -> None:
        self._answer(self._page)

    def do_POST(self) -> None:
        self._answer(self._bundle)

    def _page(self) -> tuple[str, bytes]:
        if self.path != "/":
            raise RequestError(HTTPStatus.NOT_FOUND, "there is one page here: /")
        return "text/html; charset=utf-8", self.server.page

    def _bundle(self) -> tuple[str, bytes]:
        if self.path != "/bundle":
            raise RequestError(HTTPStatus.NOT_FOUND, "texts are posted to /bundle")
        return "application/json", as_json(self.server.bundle(self._text())).encode()

    def _text(self) -> str:
        # Another site's script cannot send this type to us without asking first, and we do not answer when asked.
        if self.headers.get_content_type() != "application/json":
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, 'expected application/json: {"text": "..."}')
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(length) > 9 or int(length) > MOST_BYTES:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the text is too long: at most {MOST_BYTES:,} bytes"
            )
        try:
            text = json.loads(self.rfile.read(int(length)))["text"]
        except (ValueError, KeyError, TypeError, RecursionError):
            text = None
        if not isinstance(text, str):
            raise RequestError(HTTPStatus.BAD_REQUEST, 'expected JSON: {"text": "..."}')
        return text

    def _check_host(self) -> None:
        """A site whose name was made to point here would be let in by the browser: on loopback only our own names count."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname
        except ValueError:
            name = None
        if is_local(self.server.server_address[0]) and not is_local(name):
            raise RequestError(HTTPStatus.FORBIDDEN, f"this explorer answers at {self.server.url} only")

    def _answer(self, make: Callable[[], tuple[str, bytes]]) -> None:
        status = HTTPStatus.OK
        try:
            self._check_host()
            kind, body = make()
        except (RequestError, CoupledQKError) as error:
            status = error.status if isinstance(error, RequestError) else HTTPStatus.BAD_REQUEST
            kind, body = "application/json", as_json({"error": str(error)}).encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")):
            self.send_header(name, value)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Requests are nobody's business; the page shows what went wrong."""
