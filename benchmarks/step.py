"""Costs of a training step and of a decoded token that do not depend on the machine's load.

For each variant: the number of operators that PyTorch runs in a forward and backward pass and for one decoded token (including
views and operators called by other operators), and the bytes saved for the backward pass, also relative to standard.

    python benchmarks/step.py
    python benchmarks/step.py --preset small --batch 2 --tokens 512 --positions rope
"""

import argparse

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from coupledqk.model import TransformerLM

VARIANTS = ("standard", "euler", "hamiltonian")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="small")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=50_257)
    parser.add_argument("--positions", choices=("learned", "rope"), default="learned")
    options = parser.parse_args()
    torch.manual_seed(0)
    standard = None
    for variant in VARIANTS:
        model = TransformerLM.from_preset(
            options.preset,
            variant,
            n_layers=options.layers,
            vocab_size=options.vocab,
            n_positions=options.tokens,
            positions=options.positions,
        )
        tokens = torch.randint(options.vocab, (options.batch, options.tokens))
        kept = bytes_kept(model, tokens)
        standard = standard or kept
        print(
            f"{variant:>12}: {step_operators(model, tokens):,} operators per step, {kept / 1e6:.1f} MB kept "
            f"({kept / standard:.3f} of standard), {token_operators(model):,} operators per decoded token"
        )


def bytes_kept(model: TransformerLM, tokens: torch.Tensor) -> int:
    """Bytes of all storages saved for the backward pass of the blocks, without weights."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept[x.untyped_storage().data_ptr()] = x
        return x

    with saved_tensors_hooks(keep, lambda x: x):
        model.hidden(tokens)
    return sum(x.untyped_storage().nbytes() for pointer, x in kept.items() if pointer not in weights)


def step_operators(model: TransformerLM, tokens: torch.Tensor) -> int:
    model(tokens, tokens).backward()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        model(tokens, tokens).backward()
    return count(found)


def token_operators(model: TransformerLM) -> int:
    new = model.stream(torch.zeros(1, 8, dtype=torch.long), 4, temperature=0.0)
    next(new)
    next(new)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        next(new)
    return count(found)


def count(found: profile) -> int:
    return sum(event.name.startswith(("aten::", "coupledqk::")) for event in found.events() or [])


if __name__ == "__main__":
    main()
