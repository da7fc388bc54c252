"""Serves the page that follows training.

GET  /        the page
GET  /part    {"html": ...}: the current version of the dynamic part of the page
"""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from ..server import Answer, LocalServer, json_answer
from .watch_page import fingerprint, watch_page, watch_part


class WatchServer(LocalServer):
    def __init__(self, paths: Sequence[Path], host: str = "127.0.0.1", port: int = 8001) -> None:
        self.paths = paths
        self.reading = Lock()
        self.seen: object = None
        self.part = ""
        watch_page(paths)  # raises before the server starts if a folder cannot be shown
        routes = {
            "GET /": lambda _: Answer(watch_page(self.paths).encode()),
            "GET /part": lambda _: json_answer({"html": self.current_part()}),
        }
        super().__init__(routes, host, port)

    def current_part(self) -> str:
        """The current part of the page, which is rendered again only if a file of a run has changed."""
        with self.reading:
            now = fingerprint(self.paths)
            if now != self.seen:
                self.part, self.seen = watch_part(self.paths), now
            return self.part
