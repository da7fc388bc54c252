"""A benchmark: which models are timed, on what, and how often. Torch is loaded when it is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..errors import CoupledQKError
from ..published import THROUGHPUT
from ..schema import require
from ..variants import PAPER_VARIANTS
from .records import DecodeResult, PaperRatios, Result, ThroughputResult, ThroughputRow

if TYPE_CHECKING:
    from .contenders import Contender, Setup
    from .timing import OnMessage


@dataclass(frozen=True)
class Benchmark:
    """Speed and memory of attention variants and peers of the same shape, timed in round-robin order."""

    preset: str = "small"
    """Model size: mini, nano, tiny, small, medium or large."""
    vocab: int = 50_257
    """Vocabulary size."""
    variants: tuple[str, ...] = ()
    """Attention variants to time beside standard; the paper's unless given."""
    peers: tuple[str, ...] = ()
    """Models of the same shape from other libraries: llama, x-transformers, diffllama."""
    impl: tuple[str, ...] = ("auto",)
    """Implementations of the dynamics to time: auto, reference, fused, triton."""
    batch: int = 2
    """Number of sequences in a pass."""
    seq_len: int = 512
    """Number of tokens in a sequence."""
    memory_batch: int | None = None
    """Number of sequences in the pass whose memory is measured; the value of --batch unless given."""
    lengths: tuple[int, ...] = ()
    """Measure how time and memory grow with the sequence length, at these lengths."""
    n_steps: tuple[int, ...] = ()
    """Measure how time and memory grow with the number of integration steps, at these numbers; of euler and hamiltonian
    unless --variants are given."""
    decode: bool = False
    """Time greedy decoding of one sequence with the KV cache instead, relative to the first peer if there is one."""
    prompt: int = 64
    """Number of tokens in the prompt, with --decode."""
    new_tokens: int = 128
    """Number of tokens to decode, with --decode."""
    rounds: int = 10
    """Number of rounds, each of which times every contender once; a warm-up round precedes them."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast dtype for matrix products."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
    threads: int | None = None
    """Number of CPU threads; PyTorch's default unless given."""

    def measure(self, on_message: OnMessage = lambda text: None) -> Result:
        """Runs the benchmark. `on_message` is called with a line of text whenever something new is being measured."""
        from .decode import baseline_of, decode
        from .results import about

        self.check()
        contenders, setup = self.contenders(), self.setup()
        described = about(self.preset, contenders, setup, self.rounds)
        if self.decode:
            rows = decode(contenders, setup, self.new_tokens, self.rounds, on_message)
            return DecodeResult("decode", described, baseline_of(contenders).name, tuple(rows))
        what = "lengths" if self.lengths else "n-steps" if self.n_steps else "throughput"
        rows = self._throughput(contenders, setup, on_message)
        return ThroughputResult(what, described, contenders[0].name, tuple(rows))

    def check(self) -> None:
        for name in ("rounds", "prompt", "new_tokens"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        if sum(map(bool, (self.lengths, self.n_steps, self.decode))) > 1:
            raise CoupledQKError("--lengths, --n-steps and --decode are separate measurements: give one of them")

    def contenders(self) -> list[Contender]:
        from .contenders import our_contenders, peer_contenders

        variants = self.variants or (("euler", "hamiltonian") if self.n_steps else tuple(PAPER_VARIANTS))
        longest = max(2048, self.seq_len, self.prompt + self.new_tokens, *self.lengths)
        shape = {"vocab_size": self.vocab, "n_positions": longest}
        return [
            *our_contenders(self.preset, variants, self.impl, self.n_steps, **shape),
            *peer_contenders(self.preset, self.peers, **shape),
        ]

    def setup(self) -> Setup:
        import torch

        from ..tasks.models import pick_device
        from .contenders import Setup

        batch, seq_len = (1, self.prompt) if self.decode else (self.batch, self.seq_len)
        threads = torch.get_num_threads() if self.threads is None else self.threads
        return Setup(batch, seq_len, self.precision, str(pick_device(self.device)), threads)

    def _throughput(self, contenders: Sequence[Contender], setup: Setup, on_message: OnMessage) -> list[ThroughputRow]:
        from .throughput import throughput

        setups = [replace(setup, seq_len=length) for length in self.lengths or [self.seq_len]]
        memory_batch = self.batch if self.memory_batch is None else self.memory_batch
        rows = [row for each in setups for row in throughput(contenders, each, self.rounds, memory_batch, on_message)]
        comparable = self.preset == "small" and not self.lengths and not self.n_steps
        return [replace(row, paper=paper_ratios(row.name)) for row in rows] if comparable else rows


def paper_ratios(variant: str) -> PaperRatios | None:
    """A row of the paper's throughput table, relative to its standard attention."""
    if variant not in THROUGHPUT:
        return None
    row, standard = THROUGHPUT[variant], THROUGHPUT["standard"]
    return PaperRatios(**{key: row[key] / standard[key] for key in row})
