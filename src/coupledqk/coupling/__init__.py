"""Coupling for models of transformers that exist already: inserted, checked, saved and loaded.

Importing this makes transformers and PEFT warn of, or refuse, what would lose a coupling.
"""

from .versions import require_transformers

require_transformers()

from .adapters import load_coupling, merge_coupling, save_coupling  # noqa: E402
from .checkpoints import guard_checkpoints, load_coupled  # noqa: E402
from .couple import couple, uncouple  # noqa: E402
from .peft_guard import guard_peft  # noqa: E402

guard_checkpoints()
guard_peft()

__all__ = ["couple", "load_coupled", "load_coupling", "merge_coupling", "save_coupling", "uncouple"]
