"""Products with weight matrices: x Wᵀ.

On a CPU the library multiplies a single row by one thread alone, which takes twice as long as the memory needs to bring the
matrix. Decoding is nothing but such products. So the rows of the matrix are split among the threads, as a batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORTH_SPLITTING = 1 << 17  # numbers in the matrix; smaller ones are done before a thread is awake


class Linear(nn.Linear):
    """Without a bias."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__(n_in, n_out, bias=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        return linear(input, self.weight)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x (..., d) to (..., n), for a weight (n, d)."""
    return split_rows(x, weight) if worth_splitting(x, weight) else F.linear(x, weight)


def is_single_row(x: Tensor) -> bool:
    return x.numel() == x.shape[-1]


def worth_splitting(x: Tensor, weight: Tensor) -> bool:
    """Whether x is a single row to be multiplied now, in float32 and without gradients, by a large matrix on a CPU."""
    if not is_single_row(x) or weight.numel() < WORTH_SPLITTING or torch.is_grad_enabled():
        return False
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type):
        return False
    return x.is_cpu and x.dtype == weight.dtype == torch.float32


def split_rows(x: Tensor, weight: Tensor) -> Tensor:
    n, d = weight.shape
    hands = 4 * torch.get_num_threads()  # more than one for each thread, so that none waits long for another
    rest = n % hands
    # the row as (hands, d, 1) with unit stride along d: as a strided column, the product takes four times as long
    row = x.contiguous().as_strided((hands, d, 1), (0, 1, d))
    out = torch.bmm((weight[: n - rest] if rest else weight).view(hands, n // hands, d), row)
    if rest:
        out = torch.cat((out.view(-1), torch.mv(weight[-rest:], x.reshape(d))))
    return out.view(*x.shape[:-1], n)
