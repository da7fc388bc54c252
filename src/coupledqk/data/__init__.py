"""Corpora, tokenizers, token shards and batches."""

from .shards import CorpusInfo, SplitInfo, TokenizedCorpus, cache_folder, prepare
from .tokenizers import Tokenizer

__all__ = ["CorpusInfo", "SplitInfo", "TokenizedCorpus", "Tokenizer", "cache_folder", "prepare"]
