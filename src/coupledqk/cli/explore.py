"""coupledqk explore"""

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import CoupledQKError
from ..files import write_atomic

if TYPE_CHECKING:
    from ..explore.bundle import Reader

TEXT = "for name in names:\n    print(name)\nfor line in lines:\n    print(line)\n"


@dataclass(frozen=True)
class Explore:
    """See where each head of a trained run looks, on a text of your own; two runs are shown side by side.

    Writes one HTML page that needs no network, or with --serve answers texts as they are typed into it.

    Try it:

        coupledqk explore runs/NAME --text "the cat saw the dog and the dog saw the cat"
        coupledqk explore runs/NAME runs/OTHER --out compare.html
        coupledqk explore runs/NAME --serve
    """

    run_folders: tuple[Path, ...]
    """One run, or two to compare."""
    text: str = TEXT
    """What the runs read; - reads it from standard input."""
    cut: bool = False
    """Keep the beginning of a text that is too long."""
    out: Path = Path("explore.html")
    """The page to write."""
    serve: bool = False
    """Answer texts live instead of writing a page."""
    port: int = 8000
    """With --serve: where; 0 takes any free port."""
    host: str = "127.0.0.1"
    """With --serve: the address to listen on. The default can be reached from this machine alone."""
    checkpoint: Literal["best", "final"] = "best"
    device: str = "auto"

    def run(self) -> None:
        from ..explore.bundle import make_bundle, open_readers
        from ..explore.page import render

        if self.out.is_dir():
            raise CoupledQKError(f"{self.out} is a folder: name a file, such as --out {self.out / 'explore.html'}")
        readers = open_readers(self.run_folders, self.checkpoint, self.device)
        text = sys.stdin.read() if self.text == "-" else self.text
        if self.serve:
            self._serve(readers, text)
            return
        page = render(make_bundle(readers, text, self.cut))
        write_atomic(self.out, page)
        print(f"{self.out}: {len(page) / 1e6:.1f} MB; open it in a browser")

    def _serve(self, readers: "Sequence[Reader]", text: str) -> None:
        from ..explore.server import Server, is_local

        with Server(readers, text, self.host, self.port, self.cut) as server:
            print(f"{server.url}  (Ctrl-C ends it)", flush=True)
            if not is_local(self.host):
                print("Anyone who can reach this machine can use it.", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
