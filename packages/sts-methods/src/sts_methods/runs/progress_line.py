"""The progress display: a bar and a line that are rewritten on a terminal, plain lines now and then elsewhere."""

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from statistics import harmonic_mean
from typing import Literal, TextIO

Colour = Literal["green", "yellow", "bold"]
HEALTH = {
    "feature_std": "std",
    "effective_rank": "rank",
    "student_teacher_distance": "distance",
    "student_teacher_weight_distance": "distance",
    "mask_ratio": "confident",
}
"""Metrics of a step that tell whether the training is well, and what the display calls them."""


_BAR = 12  # columns
_COLOURS = {"green": 32, "yellow": 33, "bold": 1}
_WINDOWS = 20  # that the time left is estimated from: a single one may hold a checkpoint, or another program's minute


def format_seconds(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def painted(text: str, colour: Colour, stream: TextIO) -> str:
    """The text in a colour if `stream` is a terminal, unless NO_COLOR is set or the terminal is dumb."""
    plain = not stream.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def columns_of(stream: TextIO) -> int | None:
    """Columns of the terminal less the cursor's: a longer line would wrap, and could not be rewritten."""
    try:
        return os.get_terminal_size(stream.fileno()).columns - 1 if stream.isatty() else None
    except (OSError, ValueError):
        return None


def progress_line(
    metrics: Mapping[str, float],
    *,
    total_steps: int,
    images_per_step: int,
    width: int | None = None,
    usual_rate: float | None = None,
) -> str:
    """`step 120/500 (24%)  1,830 images/s  0:27 left  loss 2.310  std 0.041  rank 12.3`; what fits into `width`.

    The time left is that at `usual_rate`, without it at the rate of these metrics.
    """
    step = int(metrics["step"])
    parts = [f"step {step:,}/{total_steps:,} ({100 * step // max(total_steps, 1)}%)"]
    rate = metrics.get("images_per_second", 0.0)
    if rate > 0.0:
        left = (total_steps - step) * images_per_step / (usual_rate or rate)
        parts += [f"{rate:,.0f} images/s", f"{format_seconds(left)} left"]
    if "loss" in metrics:
        parts.append(f"loss {metrics['loss']:.4g}")
    parts += [f"{label} {metrics[name]:.3g}" for name, label in HEALTH.items() if name in metrics]
    while width and len(parts) > 1 and len("  ".join(parts)) > width:
        parts.pop()
    return "  ".join(parts)


def bar(share: float, stream: TextIO, *, width: int = _BAR) -> str:
    """`━━━━────────`, in a colour for what is done, or `####--------` where the terminal has no such letters."""
    done, left = "━─" if "utf" in (getattr(stream, "encoding", None) or "").lower() else "#-"
    reached = round(min(max(share, 0.0), 1.0) * width)
    return painted(done * reached, "green", stream) + left * (width - reached)


class ProgressDisplay:
    """Shows metrics on `stream` (stderr): rewritten in place on a terminal, else a line every `every_seconds`."""

    def __init__(
        self, *, total_steps: int, images_per_step: int, stream: TextIO | None = None, every_seconds: float = 10.0
    ) -> None:
        self.total_steps = total_steps
        self.images_per_step = images_per_step
        self.stream = stream if stream is not None else sys.stderr
        self.every_seconds = every_seconds
        self._interactive = self.stream.isatty()
        self._shown_at = -float("inf")
        self._width = 0
        self._rates: deque[float] = deque(maxlen=_WINDOWS)

    def show(self, metrics: Mapping[str, float]) -> None:
        last = int(metrics["step"]) >= self.total_steps
        now = time.monotonic()
        if metrics.get("images_per_second", 0.0) > 0.0:
            self._rates.append(metrics["images_per_second"])
        if not self._interactive and not last and now - self._shown_at < self.every_seconds:
            return
        self._shown_at = now
        columns = columns_of(self.stream)
        line = progress_line(
            metrics,
            total_steps=self.total_steps,
            images_per_step=self.images_per_step,
            width=columns and max(columns - _BAR - 2, 1),
            usual_rate=harmonic_mean(self._rates) if self._rates else None,
        )
        if self._interactive:
            share = int(metrics["step"]) / max(self.total_steps, 1)
            self.stream.write(f"\r{bar(share, self.stream)}  {line.ljust(self._width)}")
            self._width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Leave the last line standing."""
        if self._interactive and self._width:
            self.stream.write("\n")
            self.stream.flush()
            self._width = 0
