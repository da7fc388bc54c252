"""Fine-tuning trained runs on a GLUE task as an experiment. Torch-free until the examples are counted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import text_of
from ..errors import CoupledQKError
from ..measure import ACCURACY
from ..outcome import Claim
from ..recipes import glue_recipe
from ..run_folder import RunFolder, variant_name
from .experiment import Cell, Experiment, ListedScale

MARGIN = 0.01
"""Equivalence margin: differences in accuracy below 1% of the baseline's accuracy count as no difference."""


def fine_tuning_experiment(
    runs: Sequence[Path],
    task: str = "sst2",
    data_dir: Path | None = None,
    max_examples: int | None = None,
    epochs: int | None = None,
    **settings: Any,
) -> Experiment:
    """An experiment that fine-tunes all weights and a new linear head of each run, with the seed of its pretraining.

    Runs of one attention variant form a row. The variant of the first run is the baseline. Variants that share at least two
    seeds with it are tested for equal accuracy, as claimed in the paper.
    """
    from ..data.glue import count_train

    n_examples = count_train(task, data_dir, max_examples)
    settings = {"max_examples": max_examples, **settings}
    if data_dir is not None:
        settings["data_dir"] = str(data_dir.resolve())
    cells: list[Cell] = []
    sources: dict[tuple[str, int], Path] = {}
    for path in {path.resolve(): path for path in runs}.values():
        source = RunFolder.open(path)
        text_of(source.config)  # raises unless the run is a language model
        config = glue_recipe(source.config, str(path.resolve()), task, n_examples, epochs, **settings)
        cell = Cell(variant_name(config), config.seed, config)
        if (other := sources.setdefault((cell.label, cell.seed), path)) != path:
            raise CoupledQKError(
                f"{other} and {path} are both {cell.label} with seed {cell.seed}: expected one run per seed of each variant; "
                "leave one of them out"
            )
        cells.append(cell)
    if not cells:
        raise CoupledQKError("no run given: name at least one run folder of a language model")
    caption = f"Language models fine-tuned on {n_examples:,} examples of {task}, each with the seed of its pretraining."
    scale = ListedScale(ACCURACY, tuple(cells), claims=_claims(cells, task))
    title, source, command = f"Fine-tuning on {task}", "your own runs", f"coupledqk glue --task {task}"
    return Experiment("fine-tuning", title, source, caption, {task: scale}, command=command)


def _claims(cells: Sequence[Cell], task: str) -> tuple[Claim, ...]:
    seeds: dict[str, set[int]] = {}
    for cell in cells:
        seeds.setdefault(cell.label, set()).add(cell.seed)
    baseline, *others = seeds
    tested = [name for name in others if len(seeds[name] & seeds[baseline]) > 1]
    return tuple(
        Claim(f"{name} is as accurate as {baseline} on {task}", "equal", name, baseline, margin=MARGIN, primary=i == 0)
        for i, name in enumerate(tested)
    )
