"""Creates a sample model from a finished run:

    python -m coupledqk.samples.packing RUN_FOLDER src/coupledqk/samples/NAME

It evaluates the run before and after rounding, so it needs the text that the run was trained on.
"""

import json
import sys
from pathlib import Path
from string import Template
from typing import Any

import torch

from ..baselines import read_baselines
from ..config import text_of
from ..errors import CoupledQKError
from ..files import atomic_path, sha256, write_atomic
from ..run_folder import published, variant_name
from ..runs import Run
from ..training.checkpoints import Checkpoints

CARD = Template("""# Sample model: $variant

A language model of $parameters parameters with `$variant` attention: $layers layers of $heads heads, width $width,
$positions, a vocabulary of $vocabulary tokens. It is a run folder of coupledqk, with weights in bfloat16:

    coupledqk generate --sample --prompt "def read("
    coupledqk explore --sample
    coupledqk analyze --sample

In Python: `coupledqk.sample("$variant")`.

It exists to show attention that has learned something. It writes text that looks like Python and has no other use.

## Quality

| model of the validation text | bits per byte | perplexity |
| --- | --: | --: |
$rows

Perplexity: $definition. N-gram models have interpolated Kneser-Ney smoothing and were counted on the same training tokens.

## Training

- Text: $text. $training_tokens tokens, $training_bytes bytes; SHA-256 of the tokens of all splits
  `$corpus_hash`.
- $steps steps of $batch × $length tokens, seed $seed, learning rate $lr, fp32. `config.toml` has every setting.
- coupledqk $version, commit $commit, torch $torch.

## Licence

The training text is the source code of Python, © 2001 Python Software Foundation and others, under the licence in
`../LICENSE.python.txt`. The model can repeat fragments of it. The weights and the tokenizer are distributed under the licence
of coupledqk, as far as the licence of that text allows.

SHA-256 of the weights: `$checksum`
""")


def pack(run: Run, folder: Path) -> Run:
    """Writes the best weights of a run in bfloat16 to a new folder, with everything needed to use them and a model card."""
    if not run.result:
        raise CoupledQKError(f"{run.path} is not finished: a sample model is created from a finished run")
    best, model = run.result["best"], run.model("best", "cpu")
    with atomic_path(folder) as temporary:
        packed = Run(temporary)
        packed.create(published(run.config))
        for name in ("tokenizer.json", "metrics.jsonl"):
            write_atomic(temporary / name, (run.path / name).read_bytes())
        corpus = {**run.info["corpus"], "corpus": text_of(packed.config).corpus}
        packed.write_json("info.json", {**run.info, "name": folder.name, "corpus": corpus})
        # the speed depends on the machine
        packed.write_json("result.json", {**run.result, "seconds": None, "tokens_per_second": None})
        metrics = {name: value for name, value in best.items() if name not in ("kind", "step", "tokens")}
        Checkpoints(temporary / "checkpoints", keep=1).save_best(best["step"], model.to(torch.bfloat16), metrics)
        write_atomic(temporary / "README.md", _card(run, packed))
        files = [path for path in sorted(temporary.rglob("*")) if path.is_file()]
        checksums = {path.relative_to(temporary).as_posix(): sha256(path) for path in files}
        write_atomic(temporary / "checksums.json", json.dumps(checksums, indent=2) + "\n")
    return Run(folder)


def _card(run: Run, packed: Run) -> str:
    model, train, info = run.config.model, run.config.train, run.info
    training, start = info["corpus"]["splits"]["train"], info["starts"][-1]
    [weights] = packed.path.rglob("model.safetensors")
    return CARD.substitute(
        variant=variant_name(run.config),
        parameters=f"{info['parameters']:,}",
        layers=model.n_layers,
        heads=model.n_heads,
        width=model.d_model,
        positions="rotary positions (RoPE)" if model.positions == "rope" else "learned positions",
        vocabulary=f"{model.vocab_size:,}",
        rows="\n".join(_row(name, metrics) for name, metrics in _measured(run, weights).items()),
        definition=run.result["definition"],
        text=info["corpus"]["description"],
        training_tokens=f"{training['tokens']:,}",
        training_bytes=f"{training['bytes']:,}",
        corpus_hash=info["corpus"]["hash"],
        steps=f"{run.result['steps']:,}",
        batch=train.batch_size,
        length=train.seq_len,
        seed=run.config.seed,
        lr=train.lr,
        version=start["versions"]["coupledqk"],
        commit=start["commit"] or "unknown",
        torch=start["versions"]["torch"],
        checksum=sha256(weights),
    )


def _measured(run: Run, weights: Path) -> dict[str, Any]:
    """Bits per byte and perplexity of the stored weights, of the weights as trained, and of n-gram models."""
    own = {
        "**this model, weights in bfloat16**": run.evaluate(checkpoint=weights.parent, device="cpu", progress=False),
        "the same as trained, in float32": run.evaluate(device="cpu", progress=False),
    }
    return own | {baseline.name: vars(baseline) for baseline in read_baselines(run.result)}


def _row(name: str, metrics: dict[str, Any]) -> str:
    return f"| {name} | {metrics['bits_per_byte']:.4f} | {metrics['perplexity']:.3f} |"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    print(pack(Run.open(source), target).path)
