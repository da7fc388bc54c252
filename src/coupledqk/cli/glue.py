"""coupledqk glue"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .output import report_experiment
from .queue import WithQueue


@dataclass(frozen=True)
class Glue(WithQueue):
    """Fine-tune trained runs on a GLUE task: accuracy of each attention variant, with statistics over seeds.

    All weights of each run and a new linear head are fine-tuned, with the seed of the run's pretraining. If interrupted, the
    same command resumes from the last checkpoints.

    Try it:

        coupledqk glue runs/NAME --task sst2 --max-examples 2000 --epochs 1 --lr 1e-3
        coupledqk glue runs/standard-* runs/hamiltonian-* --task qnli --data-dir glue/
    """

    runs: tuple[Path, ...]
    """Run folders of language models: one run per seed of each attention variant, the baseline first."""
    task: Literal["sst2", "mnli", "qnli"] = "sst2"
    """The GLUE task."""
    data_dir: Path | None = None
    """Folder with SST-2/, MNLI/ and QNLI/ in GLUE's own format. By default the data is loaded from the Hugging Face hub."""
    max_examples: int | None = None
    """Number of training examples to use, from the beginning of the training set; all by default."""
    epochs: int | None = None
    """Number of passes over the examples; by default the paper's 5 (sst2, qnli) or 3 (mnli)."""
    lr: float = 2e-5
    """Peak learning rate. The default is the paper's, for 60M parameters; much smaller models need a higher one."""
    device: str | None = None
    """The device to train on; by default the device of the pretraining."""
    out: Path = Path("lab")
    """Folder for the fine-tuned runs, the outcome and the report."""
    json: bool = False
    """Print the outcome as JSON instead of a table."""

    def run(self) -> None:
        from ..lab.glue import fine_tuning_experiment

        device = {} if self.device is None else {"device": self.device}
        experiment = fine_tuning_experiment(
            self.runs, self.task, self.data_dir, self.max_examples, self.epochs, lr=self.lr, **device
        )
        report_experiment(experiment, self.out, self.jobs, self.machines(), self.json)
