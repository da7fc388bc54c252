"""coupledqk glue"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import ModelConfig, RunConfig, text_of
from ..recipes import glue_recipe
from ..run_folder import RunFolder, default_name, variant_name
from .output import mean_and_std, table
from .train import train_one


@dataclass(frozen=True)
class Glue:
    """Fine-tune trained runs on a GLUE task: accuracy, with its standard deviation over seeds.

    Each run is fine-tuned with the seed that it was pretrained with, all weights and a new linear head.
    Interrupted, it goes on where it was.

    Try it:

        coupledqk glue runs/NAME --task sst2 --max-examples 2000 --epochs 1 --lr 1e-3
        coupledqk glue runs/standard-* runs/hamiltonian-* --task qnli --data-dir glue/
    """

    runs: tuple[Path, ...]
    """Language models: of each attention one run per seed."""
    task: Literal["sst2", "mnli", "qnli"] = "sst2"
    data_dir: Path | None = None
    """A folder with SST-2/, MNLI/ and QNLI/ in GLUE's own format; from the Hugging Face hub unless given."""
    max_examples: int | None = None
    """Training examples to use, from the beginning; all unless given."""
    epochs: int | None = None
    """Passes over the examples; the paper's 5 (sst2, qnli) or 3 (mnli) unless given."""
    lr: float = 2e-5
    """Peak learning rate; the paper's unless given. Models far smaller than its 60M need more."""
    device: str | None = None
    """As in pretraining unless given."""
    out: Path = Path("runs")
    """The folder of the fine-tuned runs."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..data.glue import count_train

        sources = [RunFolder.open(path) for path in dict.fromkeys(self.runs)]
        n_examples = count_train(self.task, self.data_dir, self.max_examples)
        configs = [self._config(source, n_examples) for source in sources]
        groups: dict[ModelConfig, list[RunFolder]] = {}
        for config in configs:
            label = f"{self.task}, {variant_name(config)}, seed {config.seed}"
            groups.setdefault(config.model, []).append(train_one(config, self.out / default_name(config), label=label))
        definition = groups[configs[0].model][0].result["definition"]
        rows = [describe(runs) for runs in groups.values()]
        if self.json:
            print(json.dumps({"task": self.task, "definition": definition, "rows": rows}, indent=2))
            return
        cells = [
            [
                row["attention"],
                str(len(row["final"])),
                *(mean_and_std([*row[which].values()]) for which in ("final", "best")),
            ]
            for row in rows
        ]
        print(table(["attention", "seeds", f"{self.task} accuracy", "at the lowest loss"], cells))
        print(f"\nAccuracy: {definition}, after the last step.")

    def _config(self, source: RunFolder, n_examples: int) -> RunConfig:
        text_of(source.config)  # refuses what is not a language model
        settings: dict[str, Any] = {"lr": self.lr, "max_examples": self.max_examples}
        if self.data_dir is not None:
            settings["data_dir"] = str(self.data_dir.resolve())
        if self.device is not None:
            settings["device"] = self.device
        return glue_recipe(source.config, str(source.path.resolve()), self.task, n_examples, self.epochs, **settings)


def describe(runs: list[RunFolder]) -> dict[str, Any]:
    final, best = ({str(run.config.seed): run.result[which]["accuracy"] for run in runs} for which in ("final", "best"))
    return {"attention": runs[0].info["variant"], "final": final, "best": best}
