"""Packs arrays as text: 16-bit codes, all low bytes before all high bytes for better compression, then zlib and base64."""

import base64
import zlib

import torch
from torch import Tensor

UNIT = 4096
"""A weight w is stored as the code sign(w) · √|w| · UNIT, rounded."""


def weight_codes(weights: Tensor) -> Tensor:
    """Codes of weights. The square root gives a finer resolution to small weights, which are the most frequent. A weight is
    recovered to within √|w| / UNIT."""
    return _int16(weights.sign() * weights.abs().sqrt() * UNIT)


def scaled_codes(values: Tensor, scale: Tensor) -> Tensor:
    """Codes of values in units of `scale`, which must bring them within ±32,767."""
    return _int16(values / scale)


def pack(codes: Tensor) -> str:
    low_and_high = codes.contiguous().view(torch.uint8).reshape(-1, 2)
    return base64.b64encode(zlib.compress(low_and_high.T.contiguous().numpy().tobytes())).decode()


def unpack(text: str, *shape: int) -> Tensor:
    """The codes of a packed array, as the page's script reads them."""
    planes = torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.uint8)
    return planes.view(2, -1).T.contiguous().view(torch.int16).reshape(shape)


def _int16(values: Tensor) -> Tensor:
    return values.round().clamp(-32_767, 32_767).to(torch.int16).cpu()
