"""coupledqk watch"""

from dataclasses import dataclass
from pathlib import Path

from ..report.watch_server import WatchServer


@dataclass(frozen=True)
class Watch:
    """Follow training in a browser: curves, baselines, step sizes, tokens/s and time left of running and finished runs.

    Serves a page on this machine that updates automatically. Runs that start later in the same folders are added to it.

    Try it:

        coupledqk watch runs
        coupledqk watch demo runs/NAME --port 0
    """

    folders: tuple[Path, ...]
    """Run folders, or folders of runs."""
    port: int = 8001
    """Port to listen on; 0 selects a free port."""
    host: str = "127.0.0.1"
    """Address to listen on. The default is reachable from this machine only."""

    def run(self) -> None:
        with WatchServer(self.folders, self.host, self.port) as server:
            server.serve_until_interrupted()
