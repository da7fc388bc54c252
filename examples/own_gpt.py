"""Coupling inside a hand-written GPT: one line between its projections and its attention.

python examples/own_gpt.py [--steps 150]
"""

import argparse
import inspect

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coupledqk import DynamicsConfig
from coupledqk.dynamics import build_dynamics

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 64, 16


class SelfAttention(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dynamics = build_dynamics(DynamicsConfig(method=method), WIDTH // HEADS, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)) for y in self.qkv(x).chunk(3, dim=-1))  # (B, T, H, d)
        q, k = self.dynamics(q, k)  # the coupling; RoPE and a cache would come after it
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = SelfAttention(method)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, method: str) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(method) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def train(method: str, text: Tensor, steps: int) -> float:
    """The mean loss of the last ten steps, in nats per byte."""
    torch.manual_seed(0)
    model = GPT(method)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=generator)
        window = text[starts + torch.arange(LENGTH + 1)]
        loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / len(losses[-10:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps
    text = torch.frombuffer(bytearray(inspect.getsource(argparse), "utf-8"), dtype=torch.uint8).long()
    for method in ("none", "leapfrog"):
        print(f"{method:9} {train(method, text, steps):.3f} nats per byte after {steps} steps")
