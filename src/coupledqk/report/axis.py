"""An axis of a chart: the positions of values and the choice of ticks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

TINY, HUGE = 1e-300, 1e300
MOST_TICKS = 6


def drawable(value: float, log: bool) -> bool:
    """Whether a value is finite and not so large that computations overflow; on a log axis it must also be positive."""
    return (TINY if log else -HUGE) < value < HUGE


@dataclass(frozen=True)
class Axis:
    """Maps values onto pixels from `start` to `end`; `low` and `high` are exponents of ten on a log axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, log: bool = False) -> "Axis":
        """An axis that contains all values, with a small margin at both ends."""
        values = [math.log10(value) if log else value for value in values]
        low, high = min(values), max(values)
        spread, magnitude = high - low, max(-low, high)
        if spread <= (1e-9 if log else max(1e-9 * magnitude, TINY)):  # all values are equal up to rounding
            air = 0.5 if log or magnitude < 1e-290 else magnitude / 10
        else:
            air = min(spread / 25, 0.3) if log else spread / 25
        return cls(low - air, high + air, start, end, log)

    def at(self, value: float) -> float:
        """The pixel position of a value."""
        value = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values within the axis, each with its label."""
        ticks = _powers(self.low, self.high) if self.log else _round_numbers(self.low, self.high, MOST_TICKS)
        labels = (
            label.replace("-", "−", 1) if tick < 0 else label
            for tick, label in zip(ticks, _labels(ticks, self.log), strict=True)
        )
        return list(zip(ticks, labels, strict=True))


def _round_numbers(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    gap = (high - low) / about
    power = 10.0 ** math.floor(math.log10(gap))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= gap)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _powers(low: float, high: float) -> list[float]:
    """Round numbers from 10^low to 10^high: powers of ten, with multiples between them or with some omitted."""
    if high - low < 0.6:
        return _round_numbers(10**low, 10**high, MOST_TICKS + 2)
    exponents = range(math.floor(low), math.ceil(high) + 1)
    for factors, most in (((1, 1.5, 2, 3, 5, 7), MOST_TICKS), ((1, 2, 5), 4), ((1, 3), MOST_TICKS), ((1,), MOST_TICKS)):
        ticks = [f * 10.0**e for e in exponents for f in factors if low <= e + math.log10(f) <= high]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)]


def _labels(ticks: list[float], log: bool) -> list[str]:
    """Labels of ticks: plain numbers, with equal decimals on a linear axis, or with exponents if plain numbers are too long."""
    sizes = [abs(tick) for tick in ticks if tick]
    if min(sizes) < 1e-3 or max(sizes) >= 1e6:
        return [_with_exponent(tick) for tick in ticks]
    labels = [f"{tick:,.12g}" for tick in ticks]
    decimals = max(len(label.partition(".")[2]) for label in labels)
    return labels if log else [f"{tick:,.{decimals}f}" for tick in ticks]


def _with_exponent(tick: float) -> str:
    digits, _, exponent = f"{tick:.11e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}" if tick else "0"
