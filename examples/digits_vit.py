"""A vision transformer on scikit-learn's digits, with standard and with coupled attention.

python examples/digits_vit.py [--steps 200]
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from coupledqk import Attention

WIDTH, HEADS, LAYERS, PATCH, BATCH = 48, 4, 2, 2, 64


class Block(nn.Module):
    def __init__(self, variant: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention.from_variant(variant, WIDTH, HEADS, causal=False)  # patches attend to all others
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))[0]
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, variant: str) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(64 // PATCH**2, WIDTH))
        self.blocks = nn.Sequential(*(Block(variant) for _ in range(LAYERS)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images.unsqueeze(1), PATCH, stride=PATCH).mT  # (B, 8, 8) to (B, 16, 4)
        return self.head(self.blocks(self.embed(patches) + self.positions).mean(1))


def accuracy(variant: str, steps: int) -> float:
    """Accuracy on the test images after training."""
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.25, random_state=0)
    torch.manual_seed(0)
    model = VisionTransformer(variant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.tensor(train)[torch.randint(len(train), (BATCH,), generator=generator)]
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return (model.eval()(images[test]).argmax(-1) == labels[test]).double().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    for variant in ("standard", "hamiltonian"):
        print(f"{variant:12} {accuracy(variant, steps):.1%} of the test images after {steps} steps")
