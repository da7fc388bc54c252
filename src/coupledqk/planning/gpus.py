"""Common GPUs: memory and peak speed, from their vendors' data sheets. Torch-free.

Peak speeds are those of dense matrix products with float32 accumulation, as PyTorch uses it. Data sheets often quote twice as
much, for sparse matrices, and for GeForce cards twice as much again, for float16 accumulation. Float32 products are without
TF32, which PyTorch does not use by default.

Memory is what the driver reports. On data-centre cards with GDDR6 memory (T4, A10, A40, L4, L40S), error correction takes 6% of
the nominal size; nvidia-smi reports 15,360, 23,028, 46,068, 23,034 and 46,068 MiB.
"""

import math
from dataclasses import dataclass

from ..errors import CoupledQKError, unknown

GIB = 2**30
TERA = 1e12


@dataclass(frozen=True)
class GPU:
    """A device on which one process trains."""

    name: str
    memory: float
    """Memory in bytes."""
    fp16: float
    """Peak FLOP/s in float16."""
    bf16: float | None
    """Peak FLOP/s in bfloat16; None if the hardware does not support it."""
    fp32: float
    """Peak FLOP/s in float32."""

    def peak(self, precision: str) -> float:
        """Peak FLOP/s at a precision of `TrainConfig`."""
        found = {"fp16": self.fp16, "bf16": self.bf16, "fp32": self.fp32}[precision]
        if found is None:
            raise CoupledQKError(f"{self.name} has no bf16: set --precision fp16 or fp32, or choose another GPU")
        return found


def _gpu(name: str, gib: float, fp16: float, bf16: float | None, fp32: float) -> GPU:
    return GPU(name, gib * GIB, fp16 * TERA, None if bf16 is None else bf16 * TERA, fp32 * TERA)


GPUS: dict[str, GPU] = {
    gpu.name: gpu
    for gpu in (
        _gpu("RTX 2080 Ti", 11, 53.8, None, 13.4),  # NVIDIA Turing GPU architecture whitepaper, appendix A
        _gpu("RTX 3090", 24, 71, 71, 35.6),  # NVIDIA Ampere GA102 whitepaper, appendix A
        _gpu("RTX 4090", 24, 165.2, 165.2, 82.6),  # NVIDIA Ada GPU architecture whitepaper, appendix A
        _gpu("T4", 15, 65, None, 8.1),  # NVIDIA T4 data sheet
        _gpu("V100 16GB", 16, 125, None, 15.7),  # NVIDIA V100 data sheet, SXM2
        _gpu("V100 32GB", 32, 125, None, 15.7),
        _gpu("A10", 22.5, 125, 125, 31.2),  # NVIDIA A10 data sheet
        _gpu("A40", 45, 149.7, 149.7, 37.4),  # NVIDIA A40 data sheet
        _gpu("A100 40GB", 40, 312, 312, 19.5),  # NVIDIA A100 data sheet
        _gpu("A100 80GB", 80, 312, 312, 19.5),
        _gpu("L4", 22.5, 121, 121, 30.3),  # NVIDIA L4 data sheet, half of its figures with sparsity
        _gpu("L40S", 45, 362, 362, 91.6),  # NVIDIA L40S data sheet
        _gpu("H100 PCIe", 80, 756, 756, 51),  # NVIDIA H100 data sheet, half of its figures with sparsity
        _gpu("H100 SXM", 80, 989, 989, 67),
        _gpu("H200", 141, 989, 989, 67),  # NVIDIA H200 data sheet, half of its figures with sparsity
        # AMD Instinct MI250X data sheet, half of its figures: ROCm presents each of its two dies (GCD) as a GPU
        _gpu("MI250X GCD", 64, 191.5, 191.5, 47.9),
        _gpu("MI300X", 192, 1307.4, 1307.4, 163.4),  # AMD Instinct MI300X data sheet
    )
}


def find_gpu(name: str, flops: float | None = None, memory_gib: float | None = None) -> GPU:
    """A GPU of the table, or one described by its FLOP/s and memory."""
    for option, value in (("--flops", flops), ("--memory", memory_gib)):
        if value is not None and not 0 < value < math.inf:
            raise CoupledQKError(f"{option} {value:g}: expected greater than 0 and finite")
    by_key = {_key(known): gpu for known, gpu in GPUS.items()}
    key = _key(name)
    if flops is not None and memory_gib is not None:
        return GPU("custom GPU" if key in by_key else name, memory_gib * GIB, flops, flops, flops)
    if flops is not None or memory_gib is not None:
        raise CoupledQKError("--flops and --memory describe a GPU together: give both, or --gpu alone")
    if key in by_key:
        return by_key[key]
    models = [gpu.name for other, gpu in by_key.items() if key and other.startswith(key)]
    if models:
        raise CoupledQKError(f"unknown GPU {name!r}: did you mean {' or '.join(map(repr, models))}?")
    raise unknown("GPU", name, GPUS)


def _key(name: str) -> str:
    """A normalised name: `rtx2080ti`, `RTX 2080 Ti` and `NVIDIA GeForce RTX 2080 Ti` have the same one."""
    words = name.casefold().replace("-", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "geforce", "amd", "instinct", "tesla", "gcd"))
