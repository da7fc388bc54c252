"""coupledqk harness"""

import json
from dataclasses import dataclass
from pathlib import Path

from ..terminal import table
from .plugin import WithPlugin


@dataclass(frozen=True)
class Harness(WithPlugin):
    """Run lm-evaluation-harness on an exported or a coupled model.

    Try it:

        coupledqk harness exported/NAME --tasks wikitext hellaswag
        coupledqk harness exported/NAME --tasks my_task --include my-tasks/

    Tasks of the harness download their data from the Hugging Face hub. docs/huggingface.md describes how to define a task on
    local data in a YAML file.
    """

    folder: Path
    """Folder of a model written by `coupledqk export` or `save_pretrained`."""
    tasks: tuple[str, ...] = ()
    """Names of the tasks to run."""
    include: Path | None = None
    """Folder of YAML files that define further tasks."""
    batch_size: int = 8
    """Number of sequences in a batch."""
    limit: int | None = None
    """Number of examples of each task to use, for a quick trial; all by default."""
    device: str = "auto"
    """Device to run on: auto, cpu, cuda, cuda:1 ..."""
    json: bool = False
    """Print JSON instead of a table."""

    def run(self) -> None:
        from ..coupling.versions import quiet
        from ..hf.harness import run_harness
        from ..tasks.models import pick_device

        device = str(pick_device(self.device))
        with quiet():
            results = run_harness(self.folder, self.tasks, self.include, self.batch_size, self.limit, device)
        if self.json:
            print(json.dumps(results, indent=2))
            return
        rows = [
            [task, metric.partition(",")[0], f"{value:.4f}"]
            for task, metrics in results.items()
            for metric, value in metrics.items()
            if isinstance(value, float)
        ]
        print(table(["task", "metric", "value"], rows))
