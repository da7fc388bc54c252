"""Measures of attention maps. The docstring of each function is its definition.

Maps are (B, H, T, S): A[t, s] is the weight of key s for query t. Every measure is (B, H), one number per
sequence and head. A causal model's map of a text's first n tokens is the leading n × n block of the whole text's map.

Differential scoring gives signed maps whose rows do not sum to 1. Measures that need a distribution use the shares
|aₛ| / Σ|aₛ| of each row, which for softmax are the row itself. Other measures (singular values, redundancy) use the signed map.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import CoupledQKError


def shares(maps: Tensor) -> Tensor:
    """|aₛ| / Σ|aₛ| in each row; a row of zeros stays 0."""
    sizes = maps.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(maps.dtype).tiny)


def entropy(maps: Tensor) -> Tensor:
    """−Σ pₛ log pₛ in nats, of the shares p of a row; mean over all rows."""
    p = shares(maps)
    return -(p * p.clamp(min=torch.finfo(p.dtype).tiny).log()).sum(-1).mean(-1)  # 0 log 0 is 0


def sink_mass(maps: Tensor) -> Tensor:
    """The share of the first token; mean over the rows from the second on, since the first token attends only to itself."""
    return shares(maps)[..., 1:, 0].mean(-1)


def distance(maps: Tensor) -> Tensor:
    """Σ pₛ |t − s|, the mean distance in tokens from a query to the keys, weighted by the shares p; mean over all rows."""
    T, S = maps.shape[-2:]
    keys = torch.arange(S, device=maps.device, dtype=maps.dtype)
    queries = keys[S - T :, None]  # the last query and the last key belong to the same token
    return (shares(maps) * (queries - keys).abs()).sum(-1).mean(-1)


def redundancy(maps: Tensor) -> Tensor:
    """⟨A, B⟩ / |A||B|, the cosine similarity of the maps of two heads; mean over the other heads of the layer.

    The value is NaN for a layer with one head.
    """
    directions = F.normalize(maps.flatten(-2), dim=-1)
    cosines = directions @ directions.mT  # (B, H, H)
    others = cosines.sum(-1) - cosines.diagonal(dim1=-2, dim2=-1)
    return others / (maps.shape[1] - 1)


def singular_values(maps: Tensor) -> Tensor:
    """σ₁ ≥ σ₂ ≥ ... of each map, as square roots of the eigenvalues of A Aᵀ in float64.

    At length 512 this takes no longer than `svdvals` in float32 and is more accurate. The effective rank agrees with that from
    `svdvals` in float64 to within 1e-7, in two thirds of the time, and to within 2e-6 for a map of rank one, where `svdvals` in
    float32 has an error of 1e-4. In float32 the square roots would lose every σ below 3e-4 σ₁, and with them up to 1% of the
    rank. benchmarks/rank.py contains the measurements.
    """
    maps = maps.cpu().double() if maps.device.type == "mps" else maps.double()
    gram = (maps @ maps.mT).flatten(0, -3)
    eigenvalues = (
        _each_on_a_thread(torch.linalg.eigvalsh, gram) if gram.device.type == "cpu" else torch.linalg.eigvalsh(gram)
    )
    return eigenvalues.clamp(min=0).sqrt().flip(-1).view(*maps.shape[:-2], -1)


def _each_on_a_thread(function: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """Applies a function to each matrix in its own thread, because one matrix is too small to be split among threads."""
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return torch.stack(list(pool.map(function, matrices)))
    finally:
        torch.set_num_threads(threads)  # new threads inherit the value that any thread has set last


def effective_rank(sigma: Tensor) -> Tensor:
    """(Σσ)² / Σσ²: n for n equal singular values, 1 for a map of rank one."""
    return sigma.sum(-1) ** 2 / _positive((sigma**2).sum(-1))


def top1_ratio(sigma: Tensor) -> Tensor:
    """σ₁ / Σσ, the share of the leading singular value."""
    return sigma[..., 0] / _positive(sigma.sum(-1))


def spectral_gap(sigma: Tensor) -> Tensor:
    """σ₁ − σ₂."""
    return sigma[..., 0] - sigma[..., 1]


def spectral_ratio(sigma: Tensor) -> Tensor:
    """σ₂ / σ₁: near 0 for a wide spectral gap, 1 without a gap."""
    return sigma[..., 1] / _positive(sigma[..., 0])


OF_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "entropy": entropy,
    "sink_mass": sink_mass,
    "distance": distance,
    "redundancy": redundancy,
}
OF_SPECTRUM: dict[str, Callable[[Tensor], Tensor]] = {
    "effective_rank": effective_rank,
    "top1_ratio": top1_ratio,
    "spectral_gap": spectral_gap,
    "spectral_ratio": spectral_ratio,
}


def measure_maps(maps: Tensor) -> dict[str, Tensor]:
    """Every measure of the maps, (B, H) each."""
    if min(maps.shape[-2:]) < 2:
        raise CoupledQKError(f"maps of {maps.shape[-2]} × {maps.shape[-1]}: expected at least two queries and two keys")
    sigma = singular_values(maps)
    return {
        **{name: measure(maps) for name, measure in OF_MAPS.items()},
        **{name: measure(sigma) for name, measure in OF_SPECTRUM.items()},
    }


def _positive(x: Tensor) -> Tensor:
    """A lower bound for denominators, so that a map of zeros has measures of 0."""
    return x.clamp(min=torch.finfo(x.dtype).tiny)
