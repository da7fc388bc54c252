"""Runs lm-evaluation-harness on the model in a folder: one of our exports, a coupled model, or any model of transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CoupledQKError
from ..files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

UNLIMITED = 10**9
"""transformers uses lengths above this for tokenizers without a limit."""


def run_harness(
    folder: Path,
    tasks: Sequence[str],
    include: Path | None = None,
    batch_size: int = 8,
    limit: int | None = None,
    device: str = "cpu",
) -> dict[str, dict[str, Any]]:
    """The metrics of each task. Tasks are built into the harness or defined by YAML files in `include`.

    A text longer than the windows that the model was trained on is scored in windows of that length.
    """
    try:
        from lm_eval.evaluator import simple_evaluate
        from lm_eval.models.huggingface import HFLM
    except ImportError:
        raise CoupledQKError("the harness is an extra: pip install 'coupledqk[harness]'") from None

    model = load_for_harness(folder)
    tokenizer = _load_tokenizer(folder)
    known = find_tasks(tasks, include)
    length = tokenizer.model_max_length
    language_model: Any = HFLM
    wrapped = language_model(
        pretrained=model,
        tokenizer=tokenizer,
        backend="causal",
        batch_size=batch_size,
        device=device,
        max_length=length if length < UNLIMITED else None,
    )
    try:
        found: Any = simple_evaluate(
            model=wrapped, tasks=list(tasks), task_manager=known, limit=limit, log_samples=False, bootstrap_iters=0
        )
    except (ConnectionError, OSError) as error:
        raise CoupledQKError(
            f"the data of {', '.join(tasks)} could not be loaded ({str(error).splitlines()[0]}): built-in tasks fetch theirs "
            "from the hub; offline, describe tasks on local files and name their folder with --include"
        ) from None
    return found["results"]


def load_for_harness(folder: Path) -> "PreTrainedModel":
    """Loads the model of a folder. Missing weights are an error, because transformers would initialise them randomly."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise CoupledQKError(
            f"{folder} is not an exported model: it has no config.json; `coupledqk export RUN DIR` writes one"
        )
    if "coupledqk" in read_json(folder / "config.json", "export the model again"):
        from ..coupling import load_coupled

        return load_coupled(folder)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    except CoupledQKError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CoupledQKError(f"the model in {folder} cannot be loaded: {str(error).splitlines()[0]}") from None
    model, found = loaded
    if found["missing_keys"]:
        raise CoupledQKError(f"the weights in {folder} lack {min(found['missing_keys'])}: save the model again")
    return model


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError):
        raise CoupledQKError(
            f"{folder} has no tokenizer that transformers can load: save the tokenizer there too, with its save_pretrained"
        ) from None


def find_tasks(tasks: Sequence[str], include: Path | None) -> Any:
    """The harness's index of tasks. Its thousands of built-in tasks are read only if `include` does not define all tasks."""
    from lm_eval.tasks import TaskManager

    if not tasks:
        raise CoupledQKError("no task was named: give one or more, such as --tasks wikitext hellaswag")
    if include is not None and not include.is_dir():
        raise CoupledQKError(f"{include}: no such folder; --include names one with YAML files that describe tasks")
    known = TaskManager(include_path=str(include), include_defaults=False) if include else None
    if known is None or any(not known.match_tasks([task]) for task in tasks):
        known = TaskManager(include_path=str(include) if include else None)
    missing = [task for task in tasks if not known.match_tasks([task])]
    if missing:
        raise CoupledQKError(
            f"unknown task {missing[0]!r}: the harness has none of that name; --include names a folder of YAML files with more"
        )
    return known
