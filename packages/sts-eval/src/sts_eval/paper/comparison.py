"""Our numbers beside the paper's, with their uncertainty, and whether they may stand there."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from sts_core import ConfigError
from sts_eval.corruptions.benchmark import EXTRA_CORRUPTIONS
from sts_eval.corruptions.results import IMAGENET_C, NUM_MAIN_CELLS
from sts_eval.detection.transfer import VOC
from sts_eval.intervals import Estimate, estimate
from sts_eval.paper.numbers import PublishedNumber, published
from sts_eval.paper.rows import (
    IMAGENET_TEST_IMAGES,
    IMAGENET_TRAIN_IMAGES,
    ROWS,
    PaperRow,
    conditions_of,
    protocol_differences,
    rows_of,
    size_differences,
)
from sts_eval.probes.linear.probe import LINEAR
from sts_eval.results import RunResults, read_results, text_of
from sts_eval.runs.training import METRICS_NAME, Describe, entries_of, read_metrics, read_training

SPATIAL = ("smoothing", "granularity", "preserve_probability")
"""Conditions in which STS and the moving average it is compared with may differ."""
OTHER_CELLS = "other cells than those of the moving average"
OTHER_IMAGES = "other images than those of the moving average"
OTHER_DATA = ("dataset ", "evaluated with dataset ", OTHER_CELLS, OTHER_IMAGES)
"""Beginnings of the differences that leave no sense in subtracting the paper's number."""
UNKNOWN_FOLDER = "imagefolder (nothing says whether it is ImageNet)"
CORRUPTION_GAIN = ("text", "ImageNet-C", "mean gain over TMA, about")


@dataclass(frozen=True)
class Comparison:
    """One number of the paper and our mean over seeds."""

    published: PublishedNumber
    network: str
    """The paper's rows are the teacher's."""
    which: str
    """last or best, or what else the evaluation distinguishes."""
    runs: tuple[str, ...]
    values: tuple[float, ...]
    ours: Estimate
    differences: tuple[str, ...]
    """Why the number may not stand beside the paper's; empty where it may."""
    variant: str = ""
    """Protocol and data of the evaluation: what differs in them was measured in another way."""

    @property
    def comparable(self) -> bool:
        """Whether training and evaluation were the paper's in everything that is recorded."""
        return not self.differences

    @property
    def on_other_data(self) -> bool:
        """Whether training or evaluation was on other data than the paper's."""
        return any(difference.startswith(OTHER_DATA) for difference in self.differences)

    @property
    def reference(self) -> float | None:
        """The published value, None where the paper's training failed or ours was on other data."""
        return None if self.on_other_data else self.published.value

    @property
    def minus_paper(self) -> float | None:
        """Ours minus the paper's, None where there is no such thing."""
        return None if self.reference is None else self.ours.mean - self.reference

    @property
    def agrees(self) -> bool | None:
        """Whether the interval reaches the published number, give or take its rounding; None without an interval."""
        if self.reference is None or self.ours.low is None or self.ours.high is None:
            return None
        rounding = 0.5 * 10.0**-self.published.decimals
        return self.ours.low - rounding <= self.reference <= self.ours.high + rounding

    def __str__(self) -> str:
        place = f"{self.published.table} / {self.published.row} / {self.published.column}"
        verdict = "may stand beside it" if self.comparable else f"may not: {'; '.join(self.differences)}"
        return f"{place}: paper {self.published.printed}, ours {self.ours} ({self.network}, {self.which}): {verdict}"


def with_conditions(
    results: RunResults, training: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]] = ()
) -> RunResults:
    """Results with the seed and the conditions that training.json gives, where the results do not name them.

    Of each kind of entry the newest stays, and of its `data` what differs from the training's.
    """
    conditions = conditions_of(training)
    results = replace(results, entries=tuple(entries_of(results, training)))
    if conditions.get("dataset", "imagefolder") == "imagefolder":  # nothing says of what
        imagenet = _is_imagenet(results, conditions.get("global_batch_size"), metrics)
        if imagenet:
            conditions["dataset"] = "imagenet"
        elif imagenet is None and "dataset" in conditions:
            conditions["dataset"] = UNKNOWN_FOLDER
    if metrics and not math.isfinite(metrics[-1].get("loss") or 0.0):
        conditions["training"] = "diverged"
    seed = results.seed if results.seed is not None else training.get("seed")
    return replace(results, seed=seed, conditions=conditions | dict(results.conditions))


def _is_imagenet(results: RunResults, batch_size: int | None, metrics: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether training had ImageNet's number of images, by its steps per epoch or by a probe's count; None: unknown."""
    lengths = {round(line["step"] / line["epoch"]) for line in metrics[-1:] if line.get("step") and line.get("epoch")}
    if batch_size and lengths:
        return IMAGENET_TRAIN_IMAGES // batch_size in lengths
    own = [entry for entry in results.entries if not {"dataset", "root"} & set(entry.get("data", ()))]
    counts = {entry["num_train"] for entry in own if "num_train" in entry}
    return IMAGENET_TRAIN_IMAGES in counts if counts else None


def load_run(folder: str | Path, *, describe: Describe | None = None) -> RunResults:
    """A run's results.json, with seed and conditions from its training.json and its metrics.

    `describe` is asked about runs that are older than that file.
    """
    folder = Path(folder)
    return with_conditions(read_results(folder), read_training(folder, describe), read_metrics(folder / METRICS_NAME))


def compare_with_paper(runs: Sequence[RunResults], *, confidence: float = 0.95) -> list[Comparison]:
    """Line our runs up with the rows of the paper that they are nearest to.

    Runs that differ in their seed only are averaged; of two with the same seed the last counts. A run whose `paper`
    names a row is compared with that row; otherwise the row is found from its method and smoothing. Nothing else is
    left out: where a run departs from the paper the comparison says in what.
    """
    found: dict[tuple[Any, ...], _Seeds] = {}
    for run in runs:
        for key, value in _numbers(run).items():
            found.setdefault(key, {})[_seed_key(run)] = (run.run, value)
    comparisons = [_comparison(key, seeds, confidence) for key, seeds in found.items()]
    return comparisons + _corruption_gains(runs, confidence)


def _numbers(run: RunResults) -> dict[tuple[Any, ...], float]:
    """The numbers of a run that the paper has, too; of one measured twice the newest, which comes first.

    An evaluation with seeds of its own (detection's fine-tunings) gives the mean over them.
    """
    numbers: dict[tuple[Any, ...], dict[Any, float]] = {}
    for entry in run.entries:
        for row, column in _columns(run, entry):
            number = published(row.table, row.row, column)
            found = (*row.differences(run.conditions), *_entry_differences(row, run, entry))
            key = (number, _setting(run), _variant(entry), entry["network"], _which(entry), found)
            numbers.setdefault(key, {}).setdefault(entry.get("seed"), float(entry["value"]))
    return {key: fmean(by_seed.values()) for key, by_seed in numbers.items()}


_Seeds = dict[Any, tuple[str, float]]


class _Corrupted(NamedTuple):
    """Mean accuracy of a run over the cells (or the difference of two), and what was not as released."""

    run: str
    value: float
    differences: frozenset[str]
    cells: str
    images: str


def _variant(entry: Mapping[str, Any]) -> str:
    return text_of(entry, "protocol", "data")


def _setting(run: RunResults, *, but: Sequence[str] = ()) -> str:
    return json.dumps({name: value for name, value in run.conditions.items() if name not in but}, sort_keys=True)


def _seed_key(run: RunResults) -> Any:
    """Runs without a known seed count one by one; the same seed twice is not two measurements."""
    return run.run if run.seed is None else run.seed


def _which(entry: Mapping[str, Any]) -> str:
    return "median of the last checkpoints" if entry["metric"] == "top1-median" else str(entry["which"])


def _columns(run: RunResults, entry: Mapping[str, Any]) -> list[tuple[PaperRow, str]]:
    """The places in the paper that an entry belongs to."""
    metric = str(entry["metric"]).removesuffix("-median")
    rows = rows_of(run.conditions, entry["evaluation"], run.paper)
    return [(row, column) for row in rows for column, name in row.metrics.items() if name == metric]


def _entry_differences(row: PaperRow, run: RunResults, entry: Mapping[str, Any]) -> list[str]:
    """Differences in the evaluation, as against those in training."""
    found = [] if entry["network"] == "teacher" else [f"network {entry['network']} instead of teacher"]
    found += ["the training diverged"] if run.conditions.get("training") == "diverged" else []
    found += _other_data(entry)
    if row.evaluation == LINEAR.name:
        found += protocol_differences(str(run.conditions.get("method")), entry) + size_differences(entry)
    if row.evaluation == VOC.name:  # the detection transfer judges itself: backend, data, schedule
        found += [str(reason) for reason in entry.get("not_comparable", ("detection settings unknown",))]
    return found


def _other_data(entry: Mapping[str, Any]) -> list[str]:
    """In what the data of the evaluation is not that of the training; a folder may have been moved."""
    return [f"evaluated with {name} {value}" for name, value in entry.get("data", {}).items() if name != "root"]


def _comparison(key: tuple[Any, ...], seeds: _Seeds, confidence: float) -> Comparison:
    number, _, variant, network, which, differences = key
    names, values = (tuple(part) for part in zip(*seeds.values(), strict=True))
    return Comparison(number, network, which, names, values, estimate(values, confidence), tuple(differences), variant)


def _corruption_gains(runs: Sequence[RunResults], confidence: float) -> list[Comparison]:
    """STS minus TMA of the same m in the mean over ImageNet-C's 75 cells, seed by seed, all else being the same."""
    averages: dict[tuple[str, ...], dict[Any, _Corrupted]] = {}
    groups: dict[tuple[str, ...], dict[Any, _Corrupted]] = {}
    for run in runs:
        kind = run.conditions.get("smoothing")
        mine: dict[tuple[str, ...], _Corrupted] = {}  # the newest, which comes first
        for entry in run.entries if kind in ("tma", "sts") else ():
            if entry["evaluation"] == IMAGENET_C.name and entry["metric"] == "top1":
                twin = (_setting(run, but=SPATIAL), str(entry["network"]), str(entry["which"]), _variant(entry))
                key = twin if kind == "tma" else (*twin, _setting(run))
                mine.setdefault(key, _corrupted(run, entry))
        for place, corrupted in mine.items():
            (averages if kind == "tma" else groups).setdefault(place, {})[_seed_key(run)] = corrupted
    pairs = {key: _pairs(found, averages[key[:-1]]) for key, found in groups.items() if key[:-1] in averages}
    return [_gain(key, found, confidence) for key, found in pairs.items() if found]


def _corrupted(run: RunResults, entry: Mapping[str, Any]) -> _Corrupted:
    differences = protocol_differences(str(run.conditions.get("method")), entry) + _other_data(entry)
    source = {name: value for name, value in dict(entry.get("source") or {}).items() if name != "root"}
    images = json.dumps([entry.get("images"), entry.get("num_images"), source], sort_keys=True)
    return _Corrupted(run.run, float(entry["value"]), _foreign_images(entry) | set(differences), _cells(entry), images)


def _foreign_images(entry: Mapping[str, Any]) -> frozenset[str]:
    """In what the images were not those of ImageNet-C as it was released."""
    count, source = entry.get("num_images"), dict(entry.get("source") or {}).get("source")
    cells = entry.get("num_main_cells", "unknown")
    found = [f"{cells} of {NUM_MAIN_CELLS} cells"] if cells != NUM_MAIN_CELLS else []
    found += [f"{count} images per cell instead of {IMAGENET_TEST_IMAGES}"] if count != IMAGENET_TEST_IMAGES else []
    return frozenset(found + ([] if source == "released folders" else [f"images {source} instead of released"]))


def _cells(entry: Mapping[str, Any]) -> str:
    """The cells behind an entry's mean, as text; only their number where it does not hold them."""
    main = sorted(set(entry.get("cells", ())) - set(EXTRA_CORRUPTIONS))
    return json.dumps([main, entry.get("severities") if main else None, entry.get("num_main_cells")])


def _pairs(sts: Mapping[Any, _Corrupted], tma: Mapping[Any, _Corrupted]) -> list[_Corrupted]:
    if set(sts) & set(tma):
        return [_minus(sts[seed], tma[seed]) for seed in sts if seed in tma]
    if len(sts) == len(tma) == 1:  # one run of each without a common seed
        return [_minus(*sts.values(), *tma.values())]
    return []


def _minus(first: _Corrupted, second: _Corrupted) -> _Corrupted:
    found = first.differences | second.differences | ({OTHER_CELLS} if first.cells != second.cells else set())
    found |= {OTHER_IMAGES} if first.images != second.images else set()
    return first._replace(run=f"{first.run} - {second.run}", value=first.value - second.value, differences=found)


def _gain(key: tuple[str, ...], pairs: Sequence[_Corrupted], confidence: float) -> Comparison:
    _, network, which, variant, setting = key
    row = next(row for row in ROWS if row.row == "BYOL STS")
    differences = row.differences(json.loads(setting))
    differences += [] if network == "teacher" else [f"network {network} instead of teacher"]
    differences += sorted(frozenset().union(*(pair.differences for pair in pairs)))
    names, values = tuple(pair.run for pair in pairs), tuple(pair.value for pair in pairs)
    number = published(*CORRUPTION_GAIN)
    return Comparison(number, network, which, names, values, estimate(values, confidence), tuple(differences), variant)


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """A Markdown table, one line per number; those that may not stand beside the paper's are in brackets."""
    if not comparisons:
        raise ConfigError(
            "a table needs at least one comparison, got none: evaluate a run of the paper's methods first"
        )
    lines = [
        "| table | row | column | paper | ours | our runs | network | which | beside the paper? |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for c in comparisons:
        ours = str(c.ours) if c.comparable else f"({c.ours})"
        verdict = "yes" if c.comparable else "no: " + "; ".join(c.differences)
        place = (c.published.table, c.published.row, c.published.column, c.published.printed)
        lines.append(f"| {' | '.join((*place, ours, ', '.join(c.runs), c.network, c.which))} | {verdict} |")
    return "\n".join(lines) + "\n"
