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
    """Show the attention of each head of a trained run on a text of your own, and how coupling changes it; or compare two runs.

    Writes one HTML page that works offline. With --serve, the page shows the attention on text as you type.

    Try it:

        coupledqk explore --sample                                # two trained models that come with the package
        coupledqk explore runs/NAME --text "the cat saw the dog and the dog saw the cat"
        coupledqk explore runs/NAME runs/OTHER --out compare.html
        coupledqk explore --sample --serve
    """

    run_folders: tuple[Path, ...]
    """One run folder, or two to compare."""
    text: str = TEXT
    """Input text; - reads it from standard input."""
    cut: bool = False
    """Truncate a text that is too long instead of rejecting it."""
    out: Path = Path("explore.html")
    """HTML file to write."""
    serve: bool = False
    """Serve a page in which you can type texts, instead of writing a file."""
    port: int = 8000
    """Port to listen on with --serve; 0 selects a free port."""
    host: str = "127.0.0.1"
    """Address to listen on with --serve. The default is reachable from this machine only."""
    checkpoint: Literal["best", "final"] = "best"
    """Weights to load: those with the lowest validation loss (best), or those after the last step (final)."""
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
