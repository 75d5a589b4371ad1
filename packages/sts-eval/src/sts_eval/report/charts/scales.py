"""From data to a place on an axis: linear and logarithmic scales with round ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """Maps [low, high] to [0, 1]."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def position(self, value: float) -> float:
        """Where `value` is between the ends: 0 at `low`, 1 at `high`."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)


def round_step(span: float, num_steps: int = 5) -> float:
    """The largest of 1, 2, 5 times a power of ten that cuts `span` into at least about `num_steps` parts."""
    raw = span / num_steps
    power: float = 10.0 ** math.floor(math.log10(raw))
    return max((factor * power for factor in (1, 2, 5, 10) if factor * power <= raw * 1.2), default=power)


def _multiples(step: float, low: float, high: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def linear_scale(low: float, high: float, *, ticks: Sequence[float] | None = None, tight: bool = False) -> Scale:
    """A scale that holds [low, high]; ends are round numbers unless `tight`."""
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    if ticks is not None:
        return Scale(min(low, *ticks), max(high, *ticks), tuple(ticks))
    step = round_step(high - low)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high, _multiples(step, low, high))


def log_scale(low: float, high: float) -> Scale:
    """A logarithmic scale over whole decades, or over 1-2-5 steps where the data spans less than two."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    if last - first >= 2:
        step = max(1, round((last - first) / 6))
        ticks = tuple(10.0**power for power in range(first, last + 1, step))
        return Scale(10.0**first, max(10.0**last, ticks[-1]), ticks, log=True)
    steps = [factor * 10.0**power for power in range(first - 1, last + 2) for factor in (1, 2, 5)]
    below = max(value for value in steps if value <= low * (1 + 1e-9))
    above = min(value for value in steps if value >= high * (1 - 1e-9) and value > below)
    return Scale(below, above, tuple(value for value in steps if below <= value <= above), log=True)


def tick_text(value: float, scale: Scale) -> str:
    """A short label: 0.25, 40, 12k, 3M, 10⁻⁵."""
    if value == 0:
        return "0"
    size = abs(value)
    exponent = math.floor(math.log10(size) + 1e-9)
    if size < 1e-3 or size >= 1e9 or (scale.log and scale.low < 1e-3 and size != 1):
        factor = round(value / 10.0**exponent, 3)
        power = f"10{str(exponent).translate(SUPERSCRIPTS)}"
        return power if factor == 1 else f"{factor:g}·{power}"
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{round(value / (1e6 if unit == 'M' else 1e3), 3):g}{unit}"
    if scale.log:
        return f"{value:g}"
    steps = [b - a for a, b in zip(scale.ticks, scale.ticks[1:], strict=False)]
    decimals = max(0, -math.floor(math.log10(min(steps)) + 1e-9)) if steps else 3
    return f"{value:.{min(decimals, 6)}f}"
