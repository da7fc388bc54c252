"""Products with weight matrices: x Wᵀ.

On a CPU PyTorch multiplies a single row with only one thread, which takes twice as long as reading the matrix from memory.
Decoding consists of such products, so the rows of the matrix are distributed over the threads as a batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .torch_internals import autocasts, int8_product

WORTH_SPLITTING = 1 << 17  # size of the matrix; products with smaller ones finish before other threads start


class Linear(nn.Linear):
    """A linear map without bias."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        return linear(input, self.weight)


class Int8Linear(nn.Module):
    """`Linear` for generation on a CPU, with weights quantized to 8 bits and one scale per row of the matrix.

    The product is PyTorch's own. It is fast only with x in bfloat16, so x and the result are rounded to bfloat16. It reads 16
    numbers at a time without checking the length of a row, so rows are padded with zeros.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        weight = weight.detach().float()
        largest = weight.abs().amax(1, keepdim=True).clamp(min=torch.finfo(torch.bfloat16).tiny)
        scale = (largest / 127).bfloat16()  # rounded before the division, so that this rounding causes no error
        rounded = (weight / scale).round_().clamp_(-127, 127).to(torch.int8)
        self.padding = -weight.shape[1] % 16
        self.register_buffer("weight", F.pad(rounded, (0, self.padding)))
        self.register_buffer("scale", scale.flatten())

    def forward(self, x: Tensor) -> Tensor:
        rows = F.pad(x, (0, self.padding)) if self.padding else x
        # always a copy, even of bfloat16, because the product requires aligned memory
        rows = rows.to(torch.bfloat16, copy=True, memory_format=torch.contiguous_format)
        out = int8_product(rows.view(-1, rows.shape[-1]), self.weight, self.scale)
        return out.to(x.dtype).view(*x.shape[:-1], -1)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ, (..., n), for x (..., d) and weight W (n, d)."""
    return split_rows(x, weight) if worth_splitting(x, weight) else F.linear(x, weight)


def is_single_row(x: Tensor) -> bool:
    return x.numel() == x.shape[-1]


def worth_splitting(x: Tensor, weight: Tensor) -> bool:
    """Whether x is a single row and weight a large matrix, in float32 on a CPU, executed eagerly and without gradients."""
    if not is_single_row(x) or weight.numel() < WORTH_SPLITTING or torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() or autocasts(x.device):
        return False
    return x.is_cpu and x.dtype == weight.dtype == torch.float32


def split_rows(x: Tensor, weight: Tensor) -> Tensor:
    n, d = weight.shape
    hands = 4 * torch.get_num_threads()  # several parts per thread, to balance the load
    rest = n % hands
    # the row as (hands, d, 1) with unit stride along d: with a strided column the product takes four times as long
    row = x.contiguous().as_strided((hands, d, 1), (0, 1, d))
    out = torch.bmm((weight[: n - rest] if rest else weight).view(hands, n // hands, d), row)
    if rest:
        out = torch.cat((out.view(-1), torch.mv(weight[-rest:], x.reshape(d))))
    return out.view(*x.shape[:-1], n)
