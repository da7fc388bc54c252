"""coupledqk bench"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from ..bench.benchmark import Benchmark
from ..bench.results import save
from ..bench.tables import kernel_table, report
from ..bench.validation import check_result, summary
from .plugin import WithPlugin


@dataclass(frozen=True)
class Bench(WithPlugin, Benchmark):
    """Measure speed and memory: the paper's throughput table, next to matmul-bound estimates, the paper's figures and peers.

    Try it:

        coupledqk bench
        coupledqk bench --preset nano --vocab 2048 --rounds 3
        coupledqk bench --peers llama x-transformers diffllama --memory-batch 8 --save results/bench
        coupledqk bench --variants euler hamiltonian --impl reference fused
        coupledqk bench --lengths 256 512 1024 2048 4096 --batch 1 --variants hamiltonian diff
        coupledqk bench --n-steps 1 3 5 7
        coupledqk bench --decode --int8 --peers llama --launches 5
        coupledqk bench --variants euler hamiltonian --until 0.01 --minutes 20
        coupledqk bench --compile --peers llama x-transformers nanogpt --launches 5
        coupledqk bench --check results/bench/2026-11-17-throughput.json
        coupledqk bench --kernels
        coupledqk bench --device cuda --precision fp16 --batch 8 --impl auto triton

    Models are timed in round-robin order, so that load on the machine affects all of them alike. Speeds are relative to
    standard in the same round. The table shows the median of these ratios with quartiles, or with a confidence interval over
    launches. Load from other processes is measured, printed and saved. A model that fails its numerics check is not timed.
    """

    kernels: bool = False
    """Instead of benchmarking, compile the Triton kernels for three GPU generations and print their register and memory use."""
    check: Path | None = None
    """Instead of benchmarking, validate a result file: check its format, and that its figures follow from its timings."""
    save: Path | None = None
    """Write JSON, CSV and charts to this folder."""
    json: bool = False
    """Print JSON instead of tables."""

    def run(self) -> None:
        if self.check is not None:
            print(summary(self.check, check_result(self.check)))
            return
        if self.kernels:
            from ..dynamics.triton import compile_report

            rows = compile_report()
            print(json.dumps(rows, indent=2) if self.json else kernel_table(rows))
            return
        result = self.measure(lambda text: print(text, file=sys.stderr, flush=True))
        files = [] if self.save is None else save(result, self.save)
        print(
            json.dumps(asdict(result), indent=2)
            if self.json
            else "\n".join([report(result), "", *map(str, files)]).rstrip()
        )
