"""Tests which causal language models of the installed transformers version can be coupled, for the list in docs/coupling.md.

A tiny model of every registered model type is built and coupled with the self-check. The script prints one line per type and,
with --write, replaces the list between the two markers in docs/coupling.md. Types are not tried if the settings that make other
models tiny do not apply to them: the model cannot be built, or it has more than 30M parameters.

    python benchmarks/architectures.py --write
    python benchmarks/architectures.py llama glm4
"""

import argparse
import re
import sys
import textwrap
import warnings
from collections import defaultdict
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from coupledqk import CoupledQKError, couple

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "coupling.md"
MARKERS = re.compile("(?<=<!-- architectures -->\n).*(?=<!-- end -->)", re.DOTALL)
REASONS = {
    "attention interface": "no attention interface",
    "cross-attention": "cross-attention",
    r"\(MLA\)": "latent attention",
    "another layer": "keys of another layer",
    "before both exist": "query rotated before the key exists",
    "no softmax attention": "no softmax attention",
    "self-check": "fails the self-check",
}
LARGEST = 30_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
    parser.add_argument("--write", action="store_true", help="replace the list in docs/coupling.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity(transformers.utils.logging.CRITICAL)
    sys.path.append(str(ROOT / "tests"))
    found: dict[str, list[str]] = defaultdict(list)
    for name in options.names:
        result = classify(name)
        found[result].append(name)
        print(f"{name:28} {result}", flush=True)
    print({result: len(names) for result, names in found.items()})
    if options.write:
        DOCUMENT.write_text(MARKERS.sub(lambda _: as_markdown(found), DOCUMENT.read_text()))


def classify(name: str) -> str:
    from couplable import tiny_model

    try:
        with torch.device("meta"):
            size = tiny_model(name).num_parameters()
        model = tiny_model(name) if size <= LARGEST else None
    except Exception:
        return "not tried: not built"
    if model is None:
        return "not tried: too large"
    try:
        couple(model, verify="always")
    except CoupledQKError as error:
        return next(reason for pattern, reason in REASONS.items() if re.search(pattern, str(error)))
    return "coupled"


def as_markdown(found: dict[str, list[str]]) -> str:
    total = sum(map(len, found.values()))
    coupled = found.pop("coupled", [])
    lines = [
        f"Of the {total} causal language models of transformers {transformers.__version__}, {len(coupled)} can be coupled:",
        "",
        textwrap.fill(", ".join(coupled), 130, break_on_hyphens=False, break_long_words=False),
        "",
        "| refused or not tried | model types |",
        "| --- | --- |",
        *(f"| {reason} ({len(names)}) | {', '.join(names)} |" for reason, names in sorted(found.items())),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
