"""coupledqk data"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import DataConfig
from .output import table


@dataclass(frozen=True)
class Data:
    """Prepare a corpus as token shards, or tell what one holds: bytes, documents, tokens, content hash.

    Try it:

        coupledqk data info
        coupledqk data prepare --corpus my-texts/ --tokenizer bpe:4096
        coupledqk data prepare --corpus wikitext-103 --data-dir copies/wikitext-103
    """

    action: Literal["prepare", "info"]
    """prepare tokenizes and keeps the shards; info does so too if need be, and prints."""
    corpus: str = "python-stdlib"
    """python-stdlib, wikitext-2, wikitext-103, openwebtext, pubmed, or a local file or folder."""
    tokenizer: str = "bpe:2048"
    """gpt2, bytes, or bpe:N trained on the corpus itself."""
    data_dir: Path | None = None
    """Where a local copy of a named corpus lies; otherwise it comes from the Hugging Face hub."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """Refuse text that is not UTF-8, or replace what cannot be read."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..data.shards import cache_folder, prepare
        from ..training.progress import tokenizing

        config = DataConfig(
            corpus=self.corpus,
            tokenizer=self.tokenizer,
            data_dir=None if self.data_dir is None else str(self.data_dir),
            encoding_errors=self.encoding_errors,
        )
        with tokenizing() as on_bytes:
            corpus = prepare(config, on_bytes)
        info = corpus.info
        if self.json:
            print(json.dumps({**dataclasses.asdict(info), "hash": info.hash}, indent=2))
            return
        splits = [
            [name, f"{split.bytes:,}", f"{split.documents:,}", f"{split.tokens:,}"]
            for name, split in info.splits.items()
        ]
        print(f"{info.corpus}: {info.description}\n")
        print(table(["split", "bytes", "documents", f"{self.tokenizer} tokens"], splits))
        print(f"\nContent hash: {info.hash}")
        if self.action == "prepare":
            print(f"Tokens are kept in {cache_folder()}")
