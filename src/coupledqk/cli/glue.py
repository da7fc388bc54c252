"""coupledqk glue"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .output import report_experiment
from .queue import WithQueue


@dataclass(frozen=True)
class Glue(WithQueue):
    """Fine-tune trained runs on a GLUE task: accuracy of each attention variant, with statistics over seeds.

    Each run is fine-tuned with the seed that it was pretrained with, all weights and a new linear head. Interrupted, it resumes
    from the last checkpoints.

    Try it:

        coupledqk glue runs/NAME --task sst2 --max-examples 2000 --epochs 1 --lr 1e-3
        coupledqk glue runs/standard-* runs/hamiltonian-* --task qnli --data-dir glue/
    """

    runs: tuple[Path, ...]
    """Language models: of each attention variant one run per seed, the baseline first."""
    task: Literal["sst2", "mnli", "qnli"] = "sst2"
    """The GLUE task."""
    data_dir: Path | None = None
    """A folder with SST-2/, MNLI/ and QNLI/ in GLUE's own format; from the Hugging Face hub unless given."""
    max_examples: int | None = None
    """Training examples to use, from the beginning; all unless given."""
    epochs: int | None = None
    """Passes over the examples; the paper's 5 (sst2, qnli) or 3 (mnli) unless given."""
    lr: float = 2e-5
    """Peak learning rate; the paper's unless given. Models far smaller than its 60M need more."""
    device: str | None = None
    """The device to train on; as in pretraining unless given."""
    out: Path = Path("lab")
    """The folder of the fine-tuned runs, the outcome and the report."""
    json: bool = False
    """Print the outcome as JSON instead of a table."""

    def run(self) -> None:
        from ..lab.glue import fine_tuning_experiment

        device = {} if self.device is None else {"device": self.device}
        experiment = fine_tuning_experiment(
            self.runs, self.task, self.data_dir, self.max_examples, self.epochs, lr=self.lr, **device
        )
        report_experiment(experiment, self.out, self.jobs, self.machines(), self.json)
