"""The README of an export: what the model is, how good it is and by which definition, and how to use it."""

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

A language model of $parameters parameters with `$variant` attention, trained by
coupledqk, which holds its code:

```python
import coupledqk.hf  # pip install 'coupledqk[hf]'
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

Without coupledqk, `AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)` runs the code in
`modeling_coupledqk.py`.

`coupledqk import FOLDER` makes it a run folder again, `coupledqk harness FOLDER --tasks ...` evaluates it.

## Evaluation

| | |
| --- | --- |
| perplexity (validation) | $perplexity |
| bits per byte | $bits_per_byte |
| step | $step |
| corpus | $corpus |
| corpus hash | `$corpus_hash` |

Perplexity: $definition.

It was trained on windows of $seq_len tokens and has seen no later position. Documents are parted by end-of-text; the tokenizer
adds none by itself.

## Configuration

```toml
$config```

coupledqk $version, commit $commit.
""")


def model_card(run: RunFolder, parameters: int) -> str:
    best, info = run.result["best"], run.info
    return CARD.substitute(
        name=info["name"],
        variant=variant_name(run.config),
        parameters=f"{parameters:,}",
        perplexity=f"{best['perplexity']:.4f}",
        bits_per_byte=f"{best['bits_per_byte']:.4f}",
        step=best["step"],
        corpus=Path(text_of(run.config).corpus).name,
        corpus_hash=info["corpus"]["hash"],
        definition=run.result["definition"],
        seq_len=run.config.train.seq_len,
        config=to_toml(published(run.config)),
        version=info["starts"][-1]["versions"]["coupledqk"],
        commit=info["starts"][-1]["commit"] or "unknown",
    )
