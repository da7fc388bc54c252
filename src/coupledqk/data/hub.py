"""The paper's corpora on the Hugging Face hub, as streamed datasets without loading scripts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import CoupledQKError
from .text import Piece, pieces


@dataclass(frozen=True)
class HubCorpus:
    description: str
    repository: str
    revision: str
    subset: str | None = None
    text: Callable[[dict[str, Any]], str] = lambda row: row["text"]
    """Function that returns the text of a row."""
    splits: tuple[tuple[str, str], ...] = ()
    """Pairs of split names, ours and the hub's. Each split is then one document whose lines are the rows; without pairs, every
    row is a document."""

    def documents(self, hub_split: str = "train") -> Iterator[Piece]:
        rows = self.rows(hub_split)
        if self.splits:
            yield from pieces(map(self.text, rows))
        else:
            for row in rows:
                yield from pieces([self.text(row)])

    def rows(self, hub_split: str) -> Iterator[dict[str, Any]]:
        try:
            import datasets  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise CoupledQKError(
                f"reading {self.repository} from the Hugging Face hub is an extra: pip install 'coupledqk[hub]', or name a "
                "local copy with --data-dir"
            ) from None
        try:
            yield from datasets.load_dataset(
                self.repository, self.subset, revision=self.revision, split=hub_split, streaming=True
            )
        except Exception as error:  # the network, the hub and its client raise various exceptions
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CoupledQKError(
                f"could not read {self.repository} from the Hugging Face hub ({reason}): without a network, give a "
                "folder with a local copy, as --corpus or with --data-dir"
            ) from error


def _line(row: dict[str, Any]) -> str:
    """A line of WikiText from a row of the hub, where blank lines are empty instead of a space as in the original."""
    return row["text"] or " \n"


def _wikitext(subset: str) -> HubCorpus:
    return HubCorpus(
        description="the raw form",
        repository="Salesforce/wikitext",
        revision="b08601e04326c79dfdd32d625aee71d232d685c3",
        subset=subset,
        text=_line,
        splits=(("train", "train"), ("valid", "validation"), ("test", "test")),
    )


HUB: dict[str, HubCorpus] = {
    "wikitext-2": _wikitext("wikitext-2-raw-v1"),
    "wikitext-103": _wikitext("wikitext-103-raw-v1"),
    "openwebtext": HubCorpus(
        description="web pages",
        repository="Skylion007/openwebtext",
        revision="b4325f019c648b1641a1784748667e8b74e5e064",
    ),
    "pubmed": HubCorpus(
        description="titles and abstracts in the order of their PubMed numbers",
        repository="MedRAG/pubmed",
        revision="33da3593d5756bc04c8909f170003c0b14197957",
        text=lambda row: f"{row['title']}\n{row['content']}",
    ),
}
