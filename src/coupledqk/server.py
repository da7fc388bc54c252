"""A small HTTP server for pages on this machine, such as the explorer's. Torch-free.

It serves fixed routes only: requests cannot name files, and nothing is stored. On a loopback address it accepts only requests
whose Host header is a loopback name, which prevents other sites from reading through a browser (DNS rebinding).
"""

import contextlib
import errno
import io
import ipaddress
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from .errors import CoupledQKError

MOST_BYTES = 100_000
"""Size limit of a request's body."""
SECONDS_TO_SEND = 20.0
"""Time limit in seconds for receiving a complete request; slower requests are dropped."""


class RequestError(Exception):
    """A refused request, with the reason that is sent to the client."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Answer:
    body: bytes
    type: str = "text/html; charset=utf-8"


Route = Callable[[Any], Answer]
"""Computes an answer from the decoded JSON body of a POST request, or from None for a GET request."""


class LocalServer(ThreadingHTTPServer):
    """Listens on the loopback address unless `host` is given. Port 0 selects any free port.

    `routes` maps "GET /" or "POST /name" to a handler. A `CoupledQKError` is reported as {"error": ...} with status 400.
    """

    daemon_threads = True
    request_queue_size = 256  # the default of 5 pending connections leads to connection resets under load

    def __init__(self, routes: Mapping[str, Route], host: str = "127.0.0.1", port: int = 8000) -> None:
        self.routes = routes
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(host, port, error) from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a browser may close the connection at any time
            super().handle_error(request, client_address)

    def serve_until_interrupted(self) -> None:
        """Prints the address and serves until Ctrl-C."""
        print(f"{self.url}  (press Ctrl-C to stop)", flush=True)
        if not is_local(self.server_address[0]):
            print("Anyone who can reach this machine over the network can use this server.", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            self.serve_forever()

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]}:{self.server_port}/"


def is_local(host: Any) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def as_json(value: Any) -> str:
    """JSON as ASCII without <, so that no text can close the HTML element that contains it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def json_answer(value: Any) -> Answer:
    return Answer(as_json(value).encode(), "application/json")


def _cannot_listen(host: str, port: int, error: Exception) -> CoupledQKError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return CoupledQKError(f"port {port} of {host} is in use: choose another with --port, or 0 for any free one")
    return CoupledQKError(f"cannot listen on port {port} of {host} ({error}): choose another --port or --host")


class _Deadline(io.RawIOBase):
    """Reads from a socket until a point in time."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self.connection, self.end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long to arrive")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: LocalServer  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version, sys_version = "coupledqk", ""

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Deadline(self.connection, SECONDS_TO_SEND))

    def do_GET(self) -> None:
        self._answer(lambda: None)

    def do_POST(self) -> None:
        self._answer(self._body)

    def _answer(self, read_body: Callable[[], Any]) -> None:
        status = HTTPStatus.OK
        try:
            self._check_headers()
            answer = self._route()(read_body())
        except (RequestError, CoupledQKError) as error:
            status = error.status if isinstance(error, RequestError) else HTTPStatus.BAD_REQUEST
            answer = json_answer({"error": str(error)})
        self.connection.settimeout(SECONDS_TO_SEND)
        self.send_response(status)
        self.send_header("Content-Type", answer.type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(answer.body)

    def _route(self) -> Route:
        found = self.server.routes.get(f"{self.command} {self.path}")
        if found is None:
            raise RequestError(HTTPStatus.NOT_FOUND, f"expected one of {', '.join(self.server.routes)}")
        return found

    def _check_headers(self) -> None:
        for name in ("Host", "Content-Length", "Content-Type", "Transfer-Encoding"):
            if len(self.headers.get_all(name, [])) > 1:
                raise RequestError(HTTPStatus.BAD_REQUEST, f"expected at most one {name} header")
        # DNS rebinding: a browser would let a site whose name resolves to this address read from it, so the name is checked.
        try:
            name = urlsplit(f"//{self.headers.get('Host', 'localhost')}").hostname
        except ValueError:
            name = None
        if is_local(self.server.server_address[0]) and not is_local(name):
            raise RequestError(HTTPStatus.FORBIDDEN, f"this server answers at {self.server.url} only")

    def _body(self) -> Any:
        # A script of another site cannot send this type without a CORS preflight request, which this server rejects.
        if self.headers.get_content_type() != "application/json":
            raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected a body of type application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise RequestError(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        if len(length) > 9 or int(length) > MOST_BYTES:
            raise RequestError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the text is too long: at most {MOST_BYTES:,} bytes"
            )
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise RequestError(HTTPStatus.BAD_REQUEST, "expected JSON") from None

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Does not log requests; the page shows errors."""
