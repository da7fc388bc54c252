"""Work for one timing process and its results, as plain values that are passed between processes as JSON."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from .contenders import Contender, Setup
from .records import Conditions


@dataclass(frozen=True)
class Order:
    """A list of contenders to time, which are identified by their index. The first is the baseline in training."""

    contenders: tuple[Contender, ...]
    setup: Setup
    rounds: int
    new_tokens: int | None = None
    """Number of tokens to decode greedily; None to time training passes instead."""
    training_only: bool = False
    """Do not time the forward pass alone."""
    check: bool = True
    """Check the numerics before timing. Later launches of the same contenders skip the check."""
    backwards: bool = False
    """Build and time the contenders in reverse order."""
    cores: tuple[int, ...] = ()
    """Cores available to the benchmark. They are passed on because a thread bound to one core sees only that core."""
    left_out: tuple[int, ...] = ()
    """Indices of contenders that an earlier launch could not compile."""

    def in_order(self) -> Iterator[tuple[int, Contender]]:
        places = range(len(self.contenders))
        for place in reversed(places) if self.backwards else places:
            if place not in self.left_out:
                yield place, self.contenders[place]

    @property
    def judged(self) -> str:
        """The measurement whose interval over launches is compared with `--until`."""
        return "training" if self.new_tokens is None else "decode"

    @property
    def baseline(self) -> int:
        """Index of the baseline: the first contender, or in decoding the first peer, if there is one."""
        peers = [] if self.new_tokens is None else [i for i, who in enumerate(self.contenders) if who.peer]
        return peers[0] if peers else 0

    @property
    def tokens(self) -> int:
        """Number of tokens in one timed call."""
        return self.setup.batch * self.setup.seq_len if self.new_tokens is None else self.new_tokens


@dataclass(frozen=True)
class Launch:
    """The timings of one process, by the index of the contender."""

    seconds: dict[str, dict[int, tuple[float, ...]]]
    """Duration of every round, by measurement: `forward` and `training`, or `decode`."""
    parameters: dict[int, int]
    conditions: Conditions | None = None
    compile_seconds: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    """The reasons for which contenders could not be compiled."""
