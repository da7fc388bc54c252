"""Converts our tokenizers to fast tokenizers of transformers and back, with the same ids for the same text."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..config import tokenizer_size
from ..data.tokenizers import END_OF_TEXT, Tokenizer, from_json, from_name
from ..errors import CoupledQKError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast


def to_fast(tokenizer: Tokenizer, max_length: int) -> "PreTrainedTokenizerFast":
    """The fast tokenizer. End-of-text is its start, end and padding token; as in ours, no text encodes to it."""
    from tokenizers import AddedToken, decoders
    from tokenizers import Tokenizer as Library
    from transformers import PreTrainedTokenizerFast

    library = Library.from_str(json.dumps(_definition(tokenizer)))
    library.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    library.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=library,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        padding_side="left",  # a causal model continues the last token
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_max_length=max_length,
    )


def _definition(tokenizer: Tokenizer) -> dict[str, Any]:
    """The definition of the tokenizer for the library `tokenizers`, without end-of-text."""
    definition = json.loads(tokenizer.to_json())["definition"]
    if definition is not None:
        return definition
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    character = bytes_to_unicode()  # vocabulary files write each byte as one visible character

    def spelled(token: bytes) -> str:
        return "".join(character[byte] for byte in token)

    tokens = tokenizer.tokens[:-1]
    vocabulary = {spelled(token): i for i, token in enumerate(tokens)}
    library = Library(models.BPE(vocabulary, [(spelled(a), spelled(b)) for a, b in _merges(tokens)]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(  # pyright: ignore[reportAttributeAccessIssue]
        add_prefix_space=False, use_regex=tokenizer.name != "bytes"
    )
    return json.loads(library.to_str())


def _merges(tokens: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """The pair from which each token of two or more bytes was merged: the two parts that remain after all earlier merges."""
    rank = {token: i for i, token in enumerate(tokens)}
    for token in tokens:
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            pairs = [rank.get(a + b, len(rank)) for a, b in pairwise(parts)]
            i = pairs.index(min(pairs))
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def from_fast(fast: "PreTrainedTokenizerBase") -> Tokenizer:
    """Our tokenizer that corresponds to a fast tokenizer written by `to_fast`."""
    library = getattr(fast, "backend_tokenizer", None)
    vocabulary = fast.get_vocab()
    if library is None or vocabulary.get(END_OF_TEXT) != len(vocabulary) - 1:
        raise CoupledQKError(
            f"a tokenizer of {len(vocabulary)} tokens whose last is not {END_OF_TEXT}: only byte-level ones like those that "
            "`coupledqk export` writes can be imported"
        )
    bare = {"added_tokens": [], "post_processor": None, "decoder": None, "truncation": None, "padding": None}
    definition = {**json.loads(library.to_str()), **bare}
    for name in ("bytes", "gpt2"):
        if len(vocabulary) == tokenizer_size(name):
            ours = from_name(name)
            if ours is not None and _definition(ours) == definition:
                return ours
    if definition["model"].get("type") != "BPE" or (definition["pre_tokenizer"] or {}).get("type") != "ByteLevel":
        raise CoupledQKError("this tokenizer is not a byte-level BPE: only gpt2, bytes and bpe:N can be imported")
    name = f"bpe:{len(vocabulary)}"
    return from_json(json.dumps({"name": name, "vocab_size": len(vocabulary), "definition": definition}))
