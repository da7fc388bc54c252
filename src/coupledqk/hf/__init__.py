"""Hugging Face: our models in transformers, and coupling for models of transformers.

Importing this package registers our models with the Auto classes of transformers.
"""

from ..coupling import couple, load_coupled, load_coupling, merge_coupling, save_coupling, uncouple
from ..coupling.versions import require_transformers
from .configuration import CoupledQKConfig
from .diffllama import from_diffllama, to_diffllama
from .export import export_run, from_transformers, import_run, to_transformers
from .modeling import (
    CoupledQKForCausalLM,
    CoupledQKForQuestionAnswering,
    CoupledQKForSequenceClassification,
    CoupledQKForTokenClassification,
    CoupledQKModel,
    register,
)

register()

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
