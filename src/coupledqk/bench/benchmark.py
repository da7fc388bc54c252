"""The settings of a benchmark: the models, the hardware and the repetitions. Torch is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ..errors import CoupledQKError
from ..published import THROUGHPUT
from ..schema import require
from ..variants import PAPER_VARIANTS
from .records import FORMAT, About, DecodeResult, PaperRatios, Result, ThroughputResult, ThroughputRow

if TYPE_CHECKING:
    from .contenders import Contender, Setup
    from .orders import Launch, Order
    from .timing import OnMessage

HEAD_WIDTH = 64


@dataclass(frozen=True)
class Benchmark:
    """Speed and memory of attention variants and peers of the same shape, timed in round-robin order."""

    preset: str = "small"
    """Model size: mini, nano, tiny, small, medium or large."""
    vocab: int = 50_257
    """Vocabulary size."""
    variants: tuple[str, ...] = ()
    """Attention variants to time in addition to standard. The default is the variants of the paper."""
    peers: tuple[str, ...] = ()
    """Models of the same shape from other libraries: llama, x-transformers, diffllama. nanogpt is a reimplementation in the
    style of nanoGPT."""
    impl: tuple[str, ...] = ("auto",)
    """Implementations of the dynamics to time: auto, reference, fused, triton."""
    batch: int = 2
    """Number of sequences in a batch."""
    seq_len: int = 512
    """Number of tokens in a sequence."""
    memory_batch: int | None = None
    """Batch size for the memory measurement. The default is the value of --batch; 0 skips the measurement."""
    lengths: tuple[int, ...] = ()
    """Sequence lengths at which to measure time and memory."""
    n_steps: tuple[int, ...] = ()
    """Numbers of integration steps at which to measure time and memory. --variants then defaults to euler and hamiltonian."""
    widths: tuple[int, ...] = ()
    """Model widths at which to measure time and memory, in multiples of 64. Heads are 64 wide, and the feed-forward layer is
    four times as wide as the model."""
    depths: tuple[int, ...] = ()
    """Numbers of layers at which to measure time and memory."""
    decode: bool = False
    """Time greedy decoding of one sequence with the KV cache instead of training. Speeds are relative to the first peer, if any
    is given."""
    prompt: int = 64
    """Number of tokens in the prompt, with --decode."""
    new_tokens: int = 128
    """Number of tokens to decode, with --decode."""
    int8: bool = False
    """With --decode on a CPU, also time coupledqk's models with weight matrices quantized to 8 bits."""
    rounds: int | None = None
    """Number of timed rounds after a warm-up round. Each round times every contender once. The default is 10, or 3 per launch
    with --launches."""
    launches: int | None = None
    """Repeat the timings in this many fresh processes, in alternating order, with threads bound to cores. The reported figures
    are then medians over launches with confidence intervals. By default everything is timed in one process."""
    until: float | None = None
    """Launch at least 5 processes, and keep launching until every confidence interval of a relative speed is at most this
    wide, for example 0.01."""
    minutes: float | None = None
    """Time limit for all launches in minutes, not including the memory measurement. With --until the default is 10."""
    training_only: bool = False
    """Time only forward + backward passes, not forward passes alone."""
    compile: bool = False
    """Compile all contenders, including peers, with torch.compile, and also time the uncompiled baseline. The compilation time
    is reported; memory is not measured."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast dtype for matrix products."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
    threads: int | None = None
    """Number of CPU threads; PyTorch's default if not given."""

    def measure(self, on_message: OnMessage = lambda text: None) -> Result:
        """Runs the benchmark. `on_message` is called with a progress message before each measurement."""
        from .decode import decode_rows
        from .results import about
        from .throughput import measure_memory, throughput_rows

        self.require_valid()
        orders = self.orders()
        described = about(self.preset, orders[0].contenders, orders[0].setup, orders[0].rounds)
        baseline = orders[0].contenders[orders[0].baseline].name
        measured = [self._launches(order, on_message) for order in orders]
        described = self._with_launches(described, measured)
        timed = list(zip(orders, [launches for launches, _ in measured], strict=True))
        if self.decode:
            rows = [row for order, launches in timed for row in decode_rows(order, launches, self.in_processes)]
            return DecodeResult("decode", described, baseline, tuple(rows), FORMAT)
        rows = []
        for order, launches in timed:
            memory = measure_memory(order, self._memory_batch, on_message)
            rows += throughput_rows(order, launches, memory, self.in_processes)
        return ThroughputResult(self.what, described, baseline, tuple(map(self._with_paper, rows)), FORMAT)

    @property
    def what(self) -> Literal["throughput", "lengths", "n-steps", "widths", "depths"]:
        if self.lengths:
            return "lengths"
        return "n-steps" if self.n_steps else "widths" if self.widths else "depths" if self.depths else "throughput"

    @property
    def in_processes(self) -> bool:
        """Whether timings are taken in fresh processes. Compiled models always are, so that the compile caches are empty."""
        return self.compile or self.launches is not None or self.until is not None

    def require_valid(self) -> None:
        for name in ("rounds", "prompt", "new_tokens", "launches"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, value, "at least 1")
        for name in ("until", "minutes"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "a number above 0")
        for width in self.widths:
            require(width >= 1 and width % HEAD_WIDTH == 0, "widths", width, f"multiples of {HEAD_WIDTH}")
        for depth in self.depths:
            require(depth >= 1, "depths", depth, "at least 1")
        if sum(map(bool, (self.lengths, self.n_steps, self.widths, self.depths, self.decode))) > 1:
            raise CoupledQKError(
                "--lengths, --n-steps, --widths, --depths and --decode are separate measurements: give one of them"
            )
        if self.minutes is not None and self.launches is None and self.until is None:
            raise CoupledQKError("--minutes limits the time of the launches: give --launches or --until as well")
        if self.int8 and not self.decode:
            raise CoupledQKError("--int8 applies to decoding only: give --decode as well")
        if self.compile and self.decode:
            raise CoupledQKError("--compile does not support decoding: leave out --decode")

    def orders(self) -> list[Order]:
        """One order for each point of a sweep over lengths or shapes, or a single order without a sweep."""
        from .conditions import available
        from .orders import Order

        setup = self.setup()
        rounds = self.rounds or (3 if self.in_processes else 10)
        new_tokens = self.new_tokens if self.decode else None

        def order(setup: Setup, **shape: Any) -> Order:
            contenders = tuple(self.contenders(**shape))
            return Order(contenders, setup, rounds, new_tokens, self.training_only, cores=available())

        if self.lengths:
            return [order(replace(setup, seq_len=length)) for length in self.lengths]
        if self.widths:
            return [order(setup, d_model=d, n_heads=d // HEAD_WIDTH, d_ff=4 * d) for d in self.widths]
        return [order(setup, n_layers=depth) for depth in self.depths] or [order(setup)]

    def contenders(self, **shape: Any) -> list[Contender]:
        from .contenders import our_contenders, peer_contenders

        variants = self.variants or (("euler", "hamiltonian") if self.n_steps else tuple(PAPER_VARIANTS))
        longest = max(2048, self.seq_len, self.prompt + self.new_tokens, *self.lengths)
        shape |= {"vocab_size": self.vocab, "n_positions": longest}
        ours = our_contenders(self.preset, variants, self.impl, self.n_steps, **shape)
        rounded = [replace(each, name=f"{each.name} (int8)", int8=True) for each in ours] if self.int8 else []
        found = [*ours, *rounded, *peer_contenders(self.preset, self.peers, **shape)]
        if not self.compile:
            return found
        return [*(replace(each, compiled=True) for each in found), replace(found[0], name=f"{found[0].name} (eager)")]

    def setup(self) -> Setup:
        import torch

        from ..tasks.models import pick_device
        from .contenders import Setup

        batch, seq_len = (1, self.prompt) if self.decode else (self.batch, self.seq_len)
        threads = torch.get_num_threads() if self.threads is None else self.threads
        return Setup(batch, seq_len, self.precision, str(pick_device(self.device)), threads)

    def _launches(self, order: Order, on_message: OnMessage) -> tuple[Sequence[Launch], Sequence[str]]:
        """Returns the launches, and notes on contenders that were left out and limits that were not reached."""
        from .launches import Repetition, launch_all, launch_here

        if not self.in_processes:
            return [launch_here(order, on_message)], []
        return launch_all(order, Repetition(self.launches, self.until, self.minutes), on_message)

    def _with_launches(self, described: About, measured: Sequence[tuple[Sequence[Launch], Sequence[str]]]) -> About:
        conditions = [launch.conditions for launches, _ in measured for launch in launches]
        return replace(
            described,
            launches=min(len(launches) for launches, _ in measured),
            pinned=self.in_processes and not self.compile,
            compiled=self.compile,
            until=self.until,
            conditions=tuple(each for each in conditions if each is not None),
            notes=tuple(dict.fromkeys(note for _, notes in measured for note in notes)),
        )

    @property
    def _memory_batch(self) -> int:
        return 0 if self.compile else self.batch if self.memory_batch is None else self.memory_batch

    def _with_paper(self, row: ThroughputRow) -> ThroughputRow:
        comparable = self.preset == "small" and self.what == "throughput"
        return replace(row, paper=paper_ratios(row.name)) if comparable else row


def paper_ratios(variant: str) -> PaperRatios | None:
    """The variant's row in the paper's throughput table, relative to the row of standard attention."""
    if variant not in THROUGHPUT:
        return None
    row, standard = THROUGHPUT[variant], THROUGHPUT["standard"]
    return PaperRatios(**{key: row[key] / standard[key] for key in row})
