"""Couples a Llama, trains it with the Trainer of transformers, saves the coupling without the model, and loads it again.

python examples/hf_trainer.py [--steps 60]          needs: pip install 'coupledqk[hf]'
"""

import argparse
import inspect
import tempfile
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import coupledqk

LENGTH = 64


def new_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=LENGTH, **shape))


def windows() -> list[dict[str, torch.Tensor]]:
    """The source code of argparse in windows of bytes."""
    text = torch.frombuffer(bytearray(inspect.getsource(argparse), "utf-8"), dtype=torch.uint8).long()
    return [{"input_ids": window, "labels": window} for window in text.split(LENGTH) if len(window) == LENGTH]


def trained_loss(model: LlamaForCausalLM, steps: int, folder: str) -> float:
    settings = {"max_steps": steps, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "seed": 0}
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    trainer = Trainer(model, TrainingArguments(folder, **settings, **quiet), train_dataset=windows())
    return trainer.train().training_loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps

    with tempfile.TemporaryDirectory() as folder:
        print(f"uncoupled: mean training loss {trained_loss(new_model(), steps, folder):.3f}")
        model = coupledqk.couple(new_model(), "hamiltonian")
        print(f"coupled:   mean training loss {trained_loss(model, steps, folder):.3f}")

        coupledqk.save_coupling(model, Path(folder, "coupling"))
        weights = model.state_dict()
        coupledqk.uncouple(model)
        coupledqk.load_coupling(model, Path(folder, "coupling"))
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
