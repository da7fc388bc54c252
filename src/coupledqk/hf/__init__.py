"""Hugging Face: our models there, and coupling for theirs.

Importing this registers our models with the Auto classes of transformers.
"""

from .versions import require_transformers

require_transformers()

from .adapters import load_coupling, merge_coupling, save_coupling  # noqa: E402
from .checkpoints import guard_checkpoints, load_coupled  # noqa: E402
from .configuration import CoupledQKConfig  # noqa: E402
from .couple import couple, uncouple  # noqa: E402
from .diffllama import from_diffllama, to_diffllama  # noqa: E402
from .export import export_run, from_transformers, import_run, to_transformers  # noqa: E402
from .modeling import (  # noqa: E402
    CoupledQKForCausalLM,
    CoupledQKForQuestionAnswering,
    CoupledQKForSequenceClassification,
    CoupledQKForTokenClassification,
    CoupledQKModel,
    register,
)
from .peft_guard import guard_peft  # noqa: E402

register()
guard_checkpoints()
guard_peft()

__all__ = [
    "CoupledQKConfig",
    "CoupledQKForCausalLM",
    "CoupledQKForQuestionAnswering",
    "CoupledQKForSequenceClassification",
    "CoupledQKForTokenClassification",
    "CoupledQKModel",
    "couple",
    "export_run",
    "from_diffllama",
    "from_transformers",
    "import_run",
    "load_coupled",
    "load_coupling",
    "merge_coupling",
    "require_transformers",
    "save_coupling",
    "to_diffllama",
    "to_transformers",
    "uncouple",
]
