"""coupledqk bench"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import CoupledQKError
from ..schema import require
from ..variants import PAPER_VARIANTS
from .bench_report import report
from .output import table

if TYPE_CHECKING:
    from ..bench.contenders import Contender, Setup


@dataclass(frozen=True)
class Bench:
    """Measure speed and memory: the paper's throughput table, beside the arithmetic, the paper's column and peers.

    Try it:

        coupledqk bench
        coupledqk bench --preset nano --vocab 2048 --rounds 3
        coupledqk bench --peers llama x-transformers diffllama --memory-batch 8 --save results/bench
        coupledqk bench --variants euler hamiltonian --impl reference fused
        coupledqk bench --lengths 256 512 1024 2048 4096 --batch 1 --variants hamiltonian diff
        coupledqk bench --n-steps 1 3 5 7
        coupledqk bench --decode --peers llama
        coupledqk bench --kernels
        coupledqk bench --device cuda --precision fp16 --batch 8 --impl auto triton

    Contenders take turns, so that a busy machine slows them alike. A speed is relative to standard in the same round;
    shown is the median of these ratios with its quartiles. What fails its numerics check is not timed.
    """

    preset: str = "small"
    """Model size: mini, nano, tiny, small, medium or large."""
    vocab: int = 50_257
    """Vocabulary size."""
    variants: tuple[str, ...] = ()
    """Attention variants beside standard; the paper's unless given."""
    peers: tuple[str, ...] = ()
    """Models of the same shape from other libraries: llama, x-transformers, diffllama."""
    impl: tuple[str, ...] = ("auto",)
    """Implementations of the dynamics to time: auto, reference, fused, triton."""
    batch: int = 2
    """Sequences in a pass."""
    seq_len: int = 512
    """Tokens in a sequence."""
    memory_batch: int | None = None
    """Sequences in the pass whose memory is measured; as --batch unless given."""
    lengths: tuple[int, ...] = ()
    """How time and memory grow with the length: sequences of these."""
    n_steps: tuple[int, ...] = ()
    """How time and memory grow with the steps of the dynamics: these; of euler and hamiltonian unless --variants are given."""
    decode: bool = False
    """Decode one sequence with the cache instead; relative to the first peer, if there is one."""
    prompt: int = 64
    """Tokens of the prompt to decode after."""
    new_tokens: int = 128
    """Tokens to decode."""
    rounds: int = 10
    """How often each contender is timed; a round before warms up."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the matrix products, by autocast."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    threads: int | None = None
    """CPU threads; PyTorch's own choice unless given."""
    kernels: bool = False
    """Compile the Triton kernels for three generations of GPUs instead, and print the registers and memory they need."""
    save: Path | None = None
    """Keep JSON, CSV and plots in this folder."""
    json: bool = False
    """Print JSON instead of tables."""

    def run(self) -> None:
        if self.kernels:
            self.report_kernels()
            return
        result = self.measure()
        files = self._save(result)
        if self.json:
            print(json.dumps(result, indent=2))
            return
        text = report(result)
        if result["about"]["device"] != "cpu":
            text = f"Paste this into an issue, if it is worth sharing:\n\n```\n{text}\n```"
        print("\n\n".join([text, *(["\n".join(files)] if files else [])]))

    def report_kernels(self) -> None:
        from ..dynamics.triton import compile_report

        rows = compile_report()
        if self.json:
            print(json.dumps(rows, indent=2))
            return
        print(
            table([name.replace("_", " ") for name in rows[0]], [[str(cell) for cell in row.values()] for row in rows])
        )

    def measure(self) -> dict[str, Any]:
        from ..bench.contenders import BASELINE
        from ..bench.decode import baseline_of, decode
        from ..bench.results import describe

        self._check()
        contenders, setup = self.contenders(), self.setup()
        if self.decode:
            what, baseline = "decode", baseline_of(contenders).name
            rows = [asdict(row) for row in decode(contenders, setup, self.new_tokens, self.rounds, tell)]
        else:
            what = "lengths" if self.lengths else "n-steps" if self.n_steps else "throughput"
            baseline, rows = BASELINE, self._throughput(contenders, setup)
        about = {"preset": self.preset, **describe(contenders, setup, self.rounds)}
        return {"what": what, "about": about, "baseline": baseline, "rows": rows}

    def _check(self) -> None:
        for name in ("rounds", "prompt", "new_tokens"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        if sum(map(bool, (self.lengths, self.n_steps, self.decode))) > 1:
            raise CoupledQKError("--lengths, --n-steps and --decode are measurements of their own: give one of them")

    def _throughput(self, contenders: "list[Contender]", setup: "Setup") -> list[dict[str, Any]]:
        from ..bench.throughput import throughput

        setups = [replace(setup, seq_len=length) for length in self.lengths or [self.seq_len]]
        memory_batch = self.batch if self.memory_batch is None else self.memory_batch
        rows = [row for each in setups for row in throughput(contenders, each, self.rounds, memory_batch, tell)]
        published = {} if self.preset != "small" or self.lengths or self.n_steps else published_ratios()
        return [{**asdict(row), "paper": published.get(row.name)} for row in rows]

    def contenders(self) -> "list[Contender]":
        from ..bench.contenders import our_contenders, peer_contenders

        variants = self.variants or (("euler", "hamiltonian") if self.n_steps else tuple(PAPER_VARIANTS))
        longest = max(2048, self.seq_len, self.prompt + self.new_tokens, *self.lengths)
        shape = {"vocab_size": self.vocab, "n_positions": longest}
        return [
            *our_contenders(self.preset, variants, self.impl, self.n_steps, **shape),
            *peer_contenders(self.preset, self.peers, **shape),
        ]

    def setup(self) -> "Setup":
        import torch

        from ..bench.contenders import Setup
        from ..tasks.models import pick_device

        batch, seq_len = (1, self.prompt) if self.decode else (self.batch, self.seq_len)
        threads = torch.get_num_threads() if self.threads is None else self.threads
        return Setup(batch, seq_len, self.precision, str(pick_device(self.device)), threads)

    def _save(self, result: dict[str, Any]) -> list[str]:
        from ..bench.results import save

        return [] if self.save is None else [str(path) for path in save(result, self.save)]


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def published_ratios() -> dict[str, dict[str, float]]:
    """The paper's table, relative to its standard attention."""
    from ..published import THROUGHPUT

    standard = THROUGHPUT["standard"]
    return {name: {key: row[key] / standard[key] for key in row} for name, row in THROUGHPUT.items()}
