"""coupledqk explore"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..terminal import status
from .plugin import WithPlugin
from .sample import WithSample

TEXT = 'with open(path) as file:\n    text = file.read()\nwith open(path, "w") as file:\n    file.write(text)\n'


@dataclass(frozen=True)
class Explore(WithSample, WithPlugin):
    """Show where each head of a trained run looks on a text of your own, and what coupling changes; or compare two runs.

    Writes one HTML page that needs no network, or with --serve reads texts while they are typed.

    Try it:

        coupledqk explore --sample                                # two trained models that come with the package
        coupledqk explore runs/NAME --text "the cat saw the dog and the dog saw the cat"
        coupledqk explore runs/NAME runs/OTHER --out compare.html
        coupledqk explore --sample --serve
    """

    run_folders: tuple[Path, ...]
    """One run folder, or two to compare."""
    text: str = TEXT
    """Text that the runs read; - takes it from standard input."""
    cut: bool = False
    """Keep the beginning of a text that is too long."""
    out: Path = Path("explore.html")
    """Page to write."""
    serve: bool = False
    """Serve the page and read texts while they are typed, instead of writing a file."""
    port: int = 8000
    """Port to listen on with --serve; 0 takes any free port."""
    host: str = "127.0.0.1"
    """Address to listen on with --serve. The default can be reached from this machine only."""
    checkpoint: Literal["best", "final"] = "best"
    """Checkpoint to load."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""

    def run(self) -> None:
        with status("loading the models …"):
            from ..explore.bundle import open_readers
            from ..explore.page import write_page
            from ..explore.server import Server

            readers = open_readers(self.folders(self.run_folders), self.checkpoint, self.device)
        text = sys.stdin.read() if self.text == "-" else self.text
        if self.serve:
            with status("reading the text …"):
                server = Server(readers, text, self.host, self.port, self.cut)
            with server:
                server.serve_until_interrupted()
        else:
            with status("reading the text …"):
                size = write_page(readers, text, self.out, self.cut)
            print(f"{self.out}: {size:.1f} MB; open it in a browser")
