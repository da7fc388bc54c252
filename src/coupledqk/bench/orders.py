"""What one process is to time, and what it found: plain values, which are passed between processes as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .contenders import Contender, Setup
from .records import Conditions


@dataclass(frozen=True)
class Order:
    """Contenders are known by their place; the first is the baseline of training."""

    contenders: tuple[Contender, ...]
    setup: Setup
    rounds: int
    new_tokens: int | None = None
    """Time greedy decoding of this many tokens; None for passes of training."""
    training_only: bool = False
    """Do not time the forward pass alone."""
    check: bool = True
    """Check numerics before anything is timed. Later launches of the same contenders need no check."""
    backwards: bool = False
    """Build and time the contenders in reverse order."""
    cores: tuple[int, ...] = ()
    """Cores that the process may use; a thread that is bound to one of them no longer knows."""
    left_out: tuple[int, ...] = ()
    """Places of contenders that an earlier launch could not compile."""

    def in_order(self) -> Iterator[tuple[int, Contender]]:
        places = range(len(self.contenders))
        for place in reversed(places) if self.backwards else places:
            if place not in self.left_out:
                yield place, self.contenders[place]

    @property
    def judged(self) -> str:
        """The measurement whose ratios are compared between launches."""
        return "training" if self.new_tokens is None else "decode"

    @property
    def baseline(self) -> int:
        """The first contender; in decoding the first peer, if there is one."""
        peers = [] if self.new_tokens is None else [i for i, who in enumerate(self.contenders) if who.peer]
        return peers[0] if peers else 0

    @property
    def tokens(self) -> int:
        """Number of tokens in one timed call."""
        return self.setup.batch * self.setup.seq_len if self.new_tokens is None else self.new_tokens


@dataclass(frozen=True)
class Launch:
    """The timings of one process, by the places of the contenders."""

    seconds: dict[str, dict[int, tuple[float, ...]]]
    """Duration of every round: of forward and training, or of decode."""
    parameters: dict[int, int]
    conditions: Conditions | None = None
    compile_seconds: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    """Why contenders could not be compiled."""
