"""Adds coupling to existing models of transformers, verifies it, and saves and loads it.

Importing this package makes transformers and PEFT warn about, or refuse, operations that would lose a coupling.
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
