"""The live explorer, which serves the attention of runs on texts that the user types.

GET  /           the page
POST /bundle     {"text": "..."} gives the bundle, or {"error": "..."}
POST /effects    {"text": "..."} gives the effects of interventions on the loss
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from threading import Lock
from typing import Any

from ..server import Answer, LocalServer, RequestError, json_answer
from .bundle import Reader, make_bundle, make_effects
from .page import render

SECONDS_TO_WAIT = 60.0
"""Seconds after which a waiting request is answered with an error that the server is busy."""


class Server(LocalServer):
    def __init__(
        self, readers: Sequence[Reader], text: str, host: str = "127.0.0.1", port: int = 8000, cut: bool = False
    ) -> None:
        self.readers, self.cut = readers, cut
        self.reading = Lock()
        page = render(make_bundle(readers, text, cut), live_text=text).encode()
        routes = {
            "GET /": lambda _: Answer(page),
            "POST /bundle": lambda body: self._read(make_bundle, body),
            "POST /effects": lambda body: self._read(make_effects, body),
        }
        super().__init__(routes, host, port)

    def _read(self, make: Callable[[Sequence[Reader], str, bool], Any], body: Any) -> Answer:
        text = body.get("text") if isinstance(body, dict) else None
        if not isinstance(text, str):
            raise RequestError(HTTPStatus.BAD_REQUEST, 'expected JSON: {"text": "..."}')
        if not self.reading.acquire(timeout=SECONDS_TO_WAIT):
            raise RequestError(HTTPStatus.SERVICE_UNAVAILABLE, "the explorer is busy with other texts: try again later")
        try:  # one text at a time, because recording uses hooks of the model, and to limit the memory for maps
            return json_answer(make(self.readers, text, self.cut))
        finally:
            self.reading.release()
