"""The model card of an export: description, results with their definitions, and usage."""

from pathlib import Path
from string import Template

from ..config import text_of
from ..run_folder import RunFolder, published, variant_name
from ..schema import to_toml

CARD = Template("""---
library_name: transformers
pipeline_tag: text-generation
tags:
- coupledqk
- $variant
---

# $name

A causal language model with $parameters parameters and `$variant` attention, trained from text with coupledqk.
FOLDER below is the local folder or the id of this repository.

```python
import coupledqk.hf  # pip install 'coupledqk[hf]'
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

$without_coupledqk

`coupledqk import FOLDER` turns it into a run folder again, and `coupledqk harness FOLDER --tasks ...` evaluates it.

## Evaluation

| | |
| --- | --- |
| perplexity (validation) | $perplexity |
| bits per byte (validation) | $bits_per_byte |
| at step | $step |

Perplexity: $definition.

## Training

| | |
| --- | --- |
| corpus | $corpus |
| corpus hash | `$corpus_hash` |
| tokens seen | $tokens |
| steps | $steps |
| seed | $seed |
| precision | $precision |
| machine | $machine |
| versions | coupledqk $version (commit $commit), torch $torch |

The weights are those of the best validation. The model was trained on windows of $seq_len tokens: it has seen
no later position, and quality beyond that length is unknown. Documents are separated by an end-of-text token,
which the tokenizer does not add by itself.

## Intended use and limitations

The model is meant for research on attention. It continues text like its corpus. It has not been trained to
follow instructions or filtered for safety, and what it writes can be wrong, biased or offensive. The licence of
the weights is for their publisher to state; the corpus has a licence of its own.

## Configuration

```toml
$config```
""")

PORTABLE = """Where coupledqk is not installed, pass `trust_remote_code=True` to both calls and leave out the first line. The
modelling code in this folder, `modeling_coupledqk.py`, then gives the same logits."""
NOT_PORTABLE = (
    "The attention is defined in a plugin of coupledqk, which this folder does not contain and which is needed, too."
)


def model_card(run: RunFolder, parameters: int, *, portable: bool) -> str:
    """The text of README.md. A portable export contains its modelling code."""
    best, info, train = run.result["best"], run.info, run.config.train
    start = info["starts"][-1]
    return CARD.substitute(
        name=info["name"],
        variant=variant_name(run.config),
        without_coupledqk=PORTABLE if portable else NOT_PORTABLE,
        parameters=f"{parameters:,}",
        perplexity=f"{best['perplexity']:.4f}",
        bits_per_byte=f"{best['bits_per_byte']:.4f}",
        step=best["step"],
        corpus=Path(text_of(run.config).corpus).name,
        corpus_hash=info["corpus"]["hash"],
        definition=run.result["definition"],
        tokens=f"{run.result['tokens']:,}",
        steps=f"{run.result['steps']:,}",
        seed=run.config.seed,
        precision=train.precision,
        machine=start["machine"],
        seq_len=train.seq_len,
        config=to_toml(published(run.config)),
        version=start["versions"]["coupledqk"],
        torch=start["versions"]["torch"],
        commit=start["commit"] or "unknown",
    )
