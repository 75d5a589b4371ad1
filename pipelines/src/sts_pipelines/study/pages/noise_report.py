"""The report of the study `noise`: predicted beside measured distances, as figures and in words."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

from sts_core import Granularity
from sts_core.files import write_atomically
from sts_eval import charts
from sts_pipelines.study.pages.figures import with_legend

TITLES = {"sts": "STS", "se": "SE"}
COMMAND = "sts study noise --output pipelines/results/noise"


def write_noise_report(output: Path) -> Path:
    """Figures and README.md from the records in `output`."""
    lines = ["# STS teachers are TMA(m_eff) plus noise: predicted and measured", "", _INTRODUCTION, ""]
    rows = ["| student | teacher | m | p | predicted | layer | module | channel | neuron | TMA(m) |"]
    rows.append("|---|---|---|---|---|---|---|---|---|---|")
    figures = []
    for path in sorted(output.glob("*.json")):
        found = json.loads(path.read_text())
        for name, config in found["teachers"].items():
            rows.append(_row(found, name, config))
            figure = f"{path.stem}-{name}.svg"
            write_atomically(output / figure, charts.standalone(_chart(found, name)) + "\n")
            figures.append(f"![{found['title']}, {TITLES[name]}]({figure})")
    lines += [*rows, "", _READING, "", *figures, "", f"`{COMMAND}` makes all of it again."]
    write_atomically(output / "README.md", "\n".join(lines) + "\n")
    return output / "README.md"


_INTRODUCTION = (
    "One student in real training (digits, 0.4 M weights), followed by a bank of teachers that never influence it. All "
    "numbers are root mean squares over weights, as a share of the distance between the student and TMA(m_eff). "
    "*Predicted* is `next_noise_variance` along the student's path, without a free parameter; the other columns are "
    "measured distances from TMA(m_eff), means over the second half of the training."
)
_READING = (
    "Granularity decides how many independent draws the noise is averaged over: a few dozen layers scatter around the "
    "prediction from step to step, single weights lie on it. While the learning rate falls the student comes closer to "
    "its teachers faster than their noise fades, so the shares are above `noise_std`, which is for a student that "
    "moves steadily. One seed, which is enough here: the prediction is for this student's path."
)


def _late(found: dict[str, Any], name: str) -> list[dict[str, float]]:
    points = [point["teachers"][name] for point in found["points"]]
    return points[len(points) // 2 :]


def _row(found: dict[str, Any], name: str, config: dict[str, Any]) -> str:
    late = _late(found, name)
    shares = [
        f"{fmean(point[key] / point['distance'] for point in late):.4f}"
        for key in ("predicted", *get_args(Granularity), "tma")
    ]
    head = [found["title"], TITLES[name], f"{config['momentum']:g}", f"{config['preserve_probability']:g}"]
    return "| " + " | ".join([*head, *shares]) + " |"


def _chart(found: dict[str, Any], name: str) -> str:
    def series(key: str, title: str, colour: int) -> charts.Series:
        points = [(point["step"], point["teachers"][name]) for point in found["points"]]
        return charts.Series(title, tuple((step, noted[key] / noted["distance"]) for step, noted in points), colour)

    measured = [series(key, key, colour) for colour, key in enumerate(get_args(Granularity), start=1)]
    lines = [*measured, series("predicted", "predicted", 5)]
    label = f"{found['title']}: distance of {TITLES[name]} from TMA(m_eff)"
    svg = charts.line_chart(lines, label=label, x_label="step", y_label="share of distance to student")
    return with_legend(svg, lines)
