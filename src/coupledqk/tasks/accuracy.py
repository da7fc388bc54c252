"""Loss and accuracy of predictions."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..loss import IGNORED
from ..training.mesh import SINGLE, Mesh


@torch.no_grad()
def score(answers: Iterable[tuple[Tensor, Tensor]], mesh: Mesh = SINGLE) -> dict[str, float]:
    """Mean loss and share of correct answers, from logits (..., n) and labels (...). Labels of −100 are ignored.

    Each process of a mesh passes its own answers.
    """
    total, right, count = 0.0, 0, 0
    for logits, labels in answers:
        counts = labels != IGNORED
        logits, labels = logits[counts].float(), labels[counts]
        total += float(F.cross_entropy(logits, labels, reduction="sum"))
        right += int((logits.argmax(-1) == labels).sum())
        count += len(labels)
    total, right, count = mesh.totals(total, right, count)
    return {"loss": total / count, "accuracy": right / count}
