"""The integrators with the MLP force as one Triton kernel each way, for NVIDIA GPUs. Opt-in: impl="triton".

The kernels are in `_triton_kernels.py`. This module wraps them in a PyTorch operator, which saves the same tensors as
`fused.py` and applies RoPE outside the kernels. Products are computed in the precision of q and k, everything else in float32.
`compile_report` compiles the kernels ahead of time, without a GPU, and reports their resource requirements.
"""

import itertools
import re
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import CoupledQKError, unknown
from ..rope import rotate, rotate_back
from .fused import rebuilds
from .methods import moves_of
from .operators import SHARE, set_backward

MAX_WIDTH = 128
# Maximum shared memory of a program in bytes, by compute capability.
SHARED_MEMORY = {75: 65_536, 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448}


# The compiler caches graphs by the names of their operators, so an operator that saves other tensors needs a new name.
@torch.library.custom_op("coupledqk::triton_rotated_dynamics", mutates_args=())
def triton_dynamics(
    q: Tensor,
    k: Tensor,
    dt: Tensor,
    w1: Tensor,
    w2: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    n_steps: int,
    method: str,
) -> tuple[Tensor, Tensor]:
    """q is (B, T, H, d), k (B, T, H_kv, d), dt (H_kv,), all with any strides; cos and sin are those of a `Rope`, if any."""
    kernels, dtype = _kernels_for(q, k), _product_dtype(q)
    blocks = as_blocks(moves_of(method, n_steps), method)
    constants = _constants(q.shape[2] // k.shape[2], q.shape[3], blocks, dtype)
    q_rows, k_rows = _by_token(q), _by_token(k)
    new_q, new_k = q.new_empty(q.shape, dtype=dtype), k.new_empty(k.shape, dtype=dtype)

    n_tokens = len(q_rows)
    grid = (_ceil_div(n_tokens, constants["TOKENS"]), k.shape[2])
    tensors = (q_rows, k_rows, *_weights(dt, w1, w2, dtype), new_q, new_k)
    strides = (*q_rows.stride()[:2], *k_rows.stride()[:2], new_q.stride(1), new_k.stride(1))
    _launch(kernels.forward_kernel, grid, *tensors, n_tokens, blocks.number, *strides, **constants)
    if cos is not None and sin is not None:
        new_q, new_k = rotate(new_q, cos, sin), rotate(new_k, cos, sin)
    return new_q.to(q.dtype), new_k.to(k.dtype)


@torch.library.custom_op("coupledqk::triton_rotated_dynamics_backward", mutates_args=())
def triton_dynamics_backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    dt: Tensor,
    w1: Tensor,
    w2: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    n_steps: int,
    method: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q and k are the tensors saved by the forward pass: its outputs if the moves can be undone, otherwise its inputs."""
    rebuilding = rebuilds(q, k, n_steps, method)
    if cos is not None and sin is not None:
        grad_q, grad_k = rotate(grad_q, cos, -sin), rotate(grad_k, cos, -sin)
        if rebuilding:
            q, k = rotate_back(q, cos, sin), rotate_back(k, cos, sin)
    kernels, dtype = _kernels_for(q, k), _product_dtype(q)
    blocks = as_blocks(moves_of(method, n_steps), method)
    constants = _constants(q.shape[2] // k.shape[2], q.shape[3], blocks, dtype)
    rows = [_by_token(x) for x in (grad_q, grad_k, q, k)]
    new_q, new_k = q.new_empty(q.shape, dtype=dtype), k.new_empty(k.shape, dtype=dtype)

    n_tokens, key_heads, d = len(rows[0]), k.shape[2], k.shape[3]
    grid = (min(_ceil_div(n_tokens, constants["TOKENS"]), max(1, 4 * _processors(q) // key_heads)), key_heads)
    dt_slots = torch.empty(grid, dtype=torch.float32, device=q.device)
    w1_slots, w2_slots = (dt_slots.new_empty(*grid, d, d) for _ in range(2))
    tensors = (*rows, *_weights(dt, w1, w2, dtype), new_q, new_k, dt_slots, w1_slots, w2_slots)
    strides = (*(stride for x in rows for stride in x.stride()[:2]), new_q.stride(1), new_k.stride(1))
    constants["REBUILD"] = rebuilding
    _launch(kernels.backward_kernel, grid, *tensors, n_tokens, blocks.number, *strides, **constants)
    grad_dt, grad_w1, grad_w2 = dt_slots.sum(0), w1_slots.sum((0, 1)), w2_slots.sum((0, 1))
    return new_q.to(q.dtype), new_k.to(k.dtype), grad_dt.to(dt.dtype), grad_w1.to(w1.dtype), grad_w2.to(w2.dtype)


def _kernels() -> Any:
    try:
        from . import _triton_kernels
    except ImportError:
        raise CoupledQKError(
            "impl='triton' needs Triton: pip install 'coupledqk[triton]', or set impl to 'auto' or 'fused'"
        ) from None
    return _triton_kernels


def _interpreting() -> bool:
    from triton import knobs

    return knobs.runtime.interpret


def _kernels_for(q: Tensor, k: Tensor) -> Any:
    """The kernels. Raises an error if they do not support q and k."""
    kernels = _kernels()
    if not q.is_cuda and not _interpreting():
        raise CoupledQKError(f"impl='triton' runs on CUDA devices, not on {q.device}: set impl to 'auto' or 'fused'")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32) or k.dtype != q.dtype:
        raise CoupledQKError(
            f"impl='triton' takes q and k both in float16, bfloat16 or float32, not in {q.dtype} and {k.dtype}: "
            "set impl='fused'"
        )
    if q.shape[-1] > MAX_WIDTH:
        raise CoupledQKError(f"impl='triton' takes heads up to {MAX_WIDTH} wide, not {q.shape[-1]}: set impl='fused'")
    return kernels


def _product_dtype(q: Tensor) -> torch.dtype:
    # Triton supports half-precision products from compute capability 8.0; its interpreter does not support bfloat16 products.
    wide = torch.cuda.get_device_capability(q.device) < (8, 0) if q.is_cuda else q.dtype == torch.bfloat16
    return torch.float32 if wide else q.dtype


class Blocks(NamedTuple):
    """A method as a sequence of blocks of one force, a kick and a drift; only the first and the last may be partial."""

    number: int
    drift_first: bool
    first_kick: float
    last_kick: float
    last_drift: float


def as_blocks(moves: list[str], method: str) -> Blocks:
    starts = [i for i, move in enumerate(moves) if move == "force"]
    parts = [moves[i + 1 : j] for i, j in itertools.pairwise([*starts, len(moves)])]
    kicks = [sum(SHARE.get(move, 0.0) for move in part) for part in parts]
    blocks = Blocks(len(parts), parts[0][0] == "drift", kicks[0], kicks[-1], float("drift" in parts[-1]))
    if moves != _written_out(blocks):
        raise CoupledQKError(
            f"impl='triton' cannot run the moves of method {method!r}: only the first and the last block of a force, a kick "
            "and a drift may differ from the others; set impl='fused'"
        )
    return blocks


def _written_out(blocks: Blocks) -> list[str]:
    moves: list[str] = []
    for i in range(blocks.number):
        last = i == blocks.number - 1
        share = blocks.first_kick if i == 0 else blocks.last_kick if last else 1.0
        kick = ["kick" if share == 1.0 else "half kick"]
        drift = ["drift"] if not last or blocks.last_drift else []
        moves += ["force", *(drift + kick if blocks.drift_first else kick + drift)]
    return moves


def _constants(group_size: int, d: int, blocks: Blocks, dtype: torch.dtype) -> dict[str, Any]:
    width, group = max(16, _power_of_2(d)), _power_of_2(group_size)
    # As many queries as fit in the registers, but at least 16 tokens, the minimum number of rows of a product.
    rows = 32 if width * dtype.itemsize <= 128 else 16
    sizes = {"TOKENS": max(16, rows // group), "G": group_size, "GROUP": group, "d": d, "D": width}
    shares = {name.upper(): value for name, value in blocks._asdict().items() if name != "number"}
    return {**shares, **sizes, "num_warps": 8, "num_stages": 1}


def _by_token(x: Tensor) -> Tensor:
    """Reshapes (B, T, H, d) to (B·T, H, d) with a contiguous last dimension."""
    x = x.flatten(0, 1)
    return x if x.stride(-1) == 1 else x.contiguous()


def _weights(dt: Tensor, w1: Tensor, w2: Tensor, dtype: torch.dtype) -> list[Tensor]:
    return [dt.float().contiguous(), w1.to(dtype).contiguous(), w2.to(dtype).contiguous()]


def _processors(q: Tensor) -> int:
    return torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1


def _launch(kernel: Any, grid: tuple[int, int], *arguments: Any, **constants: Any) -> None:
    from triton.runtime.errors import OutOfResources

    try:
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, **constants)
    except OutOfResources as error:
        raise CoupledQKError(
            f"impl='triton' at head width {constants['d']} in {arguments[0].dtype} needs {error.required} of {error.name}, "
            f"and this GPU has {error.limit}: set impl='fused'"
        ) from None


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


@triton_dynamics.register_fake
def _(q, k, dt, w1, w2, cos, sin, n_steps, method):
    return q.new_empty(q.shape), k.new_empty(k.shape)


@triton_dynamics_backward.register_fake
def _(grad_q, grad_k, q, k, dt, w1, w2, cos, sin, n_steps, method):
    return tuple(x.new_empty(x.shape) for x in (q, k, dt, w1, w2))


set_backward(triton_dynamics, triton_dynamics_backward, "triton", rebuilds)


def compile_report(
    capabilities: Sequence[int] = (75, 80, 90),
    head_dims: Sequence[int] = (32, 64, 128),
    dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16, torch.float32),
) -> list[dict[str, Any]]:
    """Resource requirements of the kernels on each kind of GPU, as reported by the compiler; no GPU is used.

    Registers and `spills`, in bytes, are per thread; `fits` is whether the GPU has enough shared memory. Below capability
    8.0 only float32 is compiled.
    """
    kernels = _kernels()
    if _interpreting():
        raise CoupledQKError("Triton is interpreting its kernels and compiles none: unset TRITON_INTERPRET")
    for capability in capabilities:
        if capability not in SHARED_MEMORY:
            raise unknown("compute capability", capability, map(str, SHARED_MEMORY))
    cases = itertools.product(capabilities, head_dims, dtypes, (kernels.forward_kernel, kernels.backward_kernel))
    return [_needs(*case) for case in cases if case[0] >= 80 or case[2] == torch.float32]


def _needs(capability: int, d: int, dtype: torch.dtype, kernel: Any) -> dict[str, Any]:
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = _constants(group_size=1, d=d, blocks=as_blocks(moves_of("leapfrog", 3), "leapfrog"), dtype=dtype)
    options = {option: constants.pop(option) for option in ("num_warps", "num_stages")}
    if "REBUILD" in kernel.arg_names:
        constants["REBUILD"] = dtype == torch.float32  # the value of `rebuilds` for three steps
    kinds = {name: "constexpr" if name in constants else _kind(name, dtype) for name in kernel.arg_names}
    # Memory from PyTorch is aligned, and so are the strides at these widths.
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, name in enumerate(kinds) if name.endswith(("ptr", "token", "head"))
    }
    source = ASTSource(kernel, kinds, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = dict(re.findall(r"(\w+):(\d+)", subprocess.check_output(command, text=True)))
    return {
        "capability": capability,
        "head_dim": d,
        "dtype": str(dtype).removeprefix("torch."),
        "kernel": kernel.__name__.removesuffix("_kernel"),
        "registers": int(usage["REG"]),
        "spills": int(usage["STACK"]),
        "shared_memory": compiled.metadata.shared,
        "fits": compiled.metadata.shared <= SHARED_MEMORY[capability],
    }


def _kind(name: str, dtype: torch.dtype) -> str:
    if not name.endswith("_ptr"):
        return "i32"
    if name == "dt_ptr" or name.endswith("_slots_ptr"):
        dtype = torch.float32
    return {torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float32: "*fp32"}[dtype]
