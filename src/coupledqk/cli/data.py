"""coupledqk data"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config import MOST_JOBS, DataConfig
from ..errors import CoupledQKError
from ..terminal import table


@dataclass(frozen=True)
class Data:
    """Tokenize a corpus, show its statistics (bytes, documents, tokens, content hash), or verify its tokens.

    Try it:

        coupledqk data info
        coupledqk data prepare --corpus my-texts/ --tokenizer bpe:4096
        coupledqk data prepare --corpus wikitext-103 --data-dir copies/wikitext-103
        coupledqk data verify --corpus my-texts/ --tokenizer bpe:4096
    """

    action: Literal["prepare", "info", "verify"]
    """prepare tokenizes the corpus and prints where the tokens are stored. info prints statistics of the corpus and tokenizes
    it if needed. verify reads all stored tokens and verifies their checksums."""
    corpus: str = "python-stdlib"
    """Corpus: python-stdlib, wikitext-2, wikitext-103, openwebtext, pubmed, or a local file or folder."""
    tokenizer: str = "bpe:2048"
    """Tokenizer: gpt2, bytes, bpe:N for a byte-level BPE with N tokens trained on the corpus itself, or bpe:N@CORPUS for one
    trained on another corpus."""
    data_dir: Path | None = None
    """Folder with a local copy of a named corpus. By default the corpus is loaded from the Hugging Face hub."""
    encoding_errors: Literal["strict", "replace"] = "strict"
    """How text that is not valid UTF-8 is handled: strict raises an error, replace converts invalid bytes to U+FFFD."""
    jobs: int | None = None
    """Number of processes that tokenize, by default one per core. The tokens do not depend on it."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..data.shards import cache_folder, open_text, verify

        if self.jobs is not None and not 1 <= self.jobs <= MOST_JOBS:
            raise CoupledQKError(f"--jobs {self.jobs}: expected 1 to {MOST_JOBS:,}")
        folder = None if self.data_dir is None else str(self.data_dir)
        config = DataConfig(self.corpus, self.tokenizer, folder, encoding_errors=self.encoding_errors)
        if self.action == "verify":
            size = verify(config)
            print(json.dumps({"bytes": size}) if self.json else f"All {size:,} bytes of tokens match their checksums.")
            return
        info = open_text(config, jobs=self.jobs).info
        if self.json:
            print(json.dumps({**dataclasses.asdict(info), "hash": info.hash}, indent=2))
            return
        splits = [
            [name, *(f"{count:,}" for count in (split.bytes, split.documents, split.tokens))]
            for name, split in info.splits.items()
        ]
        print(f"{info.corpus}: {info.description}\n")
        print(table(["split", "bytes", "documents", f"{self.tokenizer} tokens"], splits))
        print(f"\nContent hash: {info.hash}")
        if self.action == "prepare":
            print(f"Tokens are stored in {cache_folder()}")
