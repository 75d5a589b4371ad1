"""Our numbers beside the paper's, with their uncertainty, and whether they may stand there."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sts_core.errors import ConfigError
from sts_eval.intervals import Estimate, estimate
from sts_eval.paper_rows import (
    IMAGENET_TEST_IMAGES,
    IMAGENET_TRAIN_IMAGES,
    PaperRow,
    describe_training,
    protocol_obstacles,
    rows_of,
)
from sts_eval.published import PublishedNumber, published
from sts_eval.results import RunResults, read_results

CORRUPTION_GAIN = ("text", "ImageNet-C", "mean gain over TMA, about")


@dataclass(frozen=True)
class Comparison:
    """One cell of the paper and our mean over seeds."""

    published: PublishedNumber
    network: str
    """The paper's rows are the teacher's."""
    which: str
    """last or best, or what else the evaluation distinguishes."""
    runs: tuple[str, ...]
    values: tuple[float, ...]
    ours: Estimate
    obstacles: tuple[str, ...]
    """Why the number may not stand beside the paper's; empty where it may."""

    @property
    def may_stand(self) -> bool:
        """Whether training and evaluation were the paper's in everything that is recorded."""
        return not self.obstacles

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, None where the paper's training failed."""
        value = self.published.value
        return None if value is None else self.ours.mean - value

    @property
    def agrees(self) -> bool | None:
        """Whether the interval reaches the published number, give or take its rounding; None without an interval."""
        value = self.published.value
        if value is None or self.ours.low is None or self.ours.high is None:
            return None
        rounding = 0.5 * 10.0**-self.published.decimals
        return self.ours.low - rounding <= value <= self.ours.high + rounding

    def to_json(self) -> dict[str, Any]:
        """Everything, as plain values."""
        judged = {"may_stand": self.may_stand, "difference": self.difference, "agrees": self.agrees}
        return asdict(self) | {"published": asdict(self.published) | {"value": self.published.value}} | judged

    def __str__(self) -> str:
        place = f"{self.published.table} / {self.published.row} / {self.published.column}"
        verdict = "may stand beside it" if self.may_stand else f"may not: {'; '.join(self.obstacles)}"
        return f"{place}: paper {self.published.printed}, ours {self.ours} ({self.network}, {self.which}): {verdict}"


def with_conditions(results: RunResults, config: Mapping[str, Any]) -> RunResults:
    """Results with the seed and the conditions that a run's config gives, where the results do not name them."""
    training = config.get("training", config)
    conditions = describe_training(config)
    if any(entry.get("num_train") == IMAGENET_TRAIN_IMAGES for entry in results.entries):
        conditions["dataset"] = "imagenet"  # the config only says that it is a folder of images
    seed = results.seed if results.seed is not None else training.get("seed")
    return replace(results, seed=seed, conditions=conditions | dict(results.conditions))


def load_run(folder: str | Path) -> RunResults:
    """A run's results.json, with seed and conditions from its config (config.json, or config.yaml where PyYAML is)."""
    results, folder = read_results(folder), Path(folder)
    if (folder / "config.json").is_file():
        return with_conditions(results, json.loads((folder / "config.json").read_text()))
    if (folder / "config.yaml").is_file():
        import yaml

        return with_conditions(results, yaml.safe_load((folder / "config.yaml").read_text()))
    return results


def compare_with_paper(runs: Sequence[RunResults], *, confidence: float = 0.95) -> list[Comparison]:
    """Line our runs up with the rows of the paper that they are nearest to.

    Runs that differ in their seed only are averaged. A run whose `paper` names a row is compared with that row;
    otherwise the row is found from its method and smoothing. Nothing is left out: where a run departs from the paper
    the comparison says in what.
    """
    cells: dict[tuple[Any, ...], _Cell] = {}
    for run in runs:
        for entry in run.entries:
            for row, column in _columns(run, entry):
                number = published(row.table, row.row, column)
                found = (*row.obstacles(run.conditions), *_entry_obstacles(row, run, entry))
                key = (number, _setting(run), entry["network"], _which(entry), found)
                cells.setdefault(key, {})[_seed_key(run)] = (run.run, float(entry["value"]))
    comparisons = [_comparison(key, cell, confidence) for key, cell in cells.items()]
    return comparisons + _corruption_gains(runs, confidence)


_Cell = dict[Any, tuple[str, float]]
_Corrupted = tuple[str, float, frozenset[str]]
"""Run, mean accuracy over the cells (or a difference of two), and what was not as released."""


def _setting(run: RunResults) -> str:
    return json.dumps(dict(run.conditions), sort_keys=True)


def _seed_key(run: RunResults) -> Any:
    """Runs without a known seed count one by one; the same seed twice is not two measurements."""
    return run.run if run.seed is None else run.seed


def _which(entry: Mapping[str, Any]) -> str:
    return "median of the last checkpoints" if entry["metric"] == "top1-median" else str(entry["which"])


def _columns(run: RunResults, entry: Mapping[str, Any]) -> list[tuple[PaperRow, str]]:
    """The cells that an entry belongs to."""
    metric = str(entry["metric"]).removesuffix("-median")
    rows = rows_of(run.conditions, entry["evaluation"], run.paper)
    return [(row, column) for row in rows for column, name in row.metrics.items() if name == metric]


def _entry_obstacles(row: PaperRow, run: RunResults, entry: Mapping[str, Any]) -> list[str]:
    """Departures in the evaluation, as against those in training."""
    found = [] if entry["network"] == "teacher" else [f"network {entry['network']} instead of teacher"]
    if row.evaluation == "linear":
        found += protocol_obstacles(str(run.conditions.get("method")), entry)
    if row.evaluation == "voc":  # the detection transfer judges itself: backend, data, schedule
        found += [str(reason) for reason in entry.get("not_comparable", ("detection settings unknown",))]
    elif row.evaluation == "voc":
        found += entry.get("not_comparable", [])  # what detection_transfer says of its own data and schedule
    return found


def _comparison(key: tuple[Any, ...], cell: _Cell, confidence: float) -> Comparison:
    number, _, network, which, obstacles = key
    names, values = (tuple(part) for part in zip(*cell.values(), strict=True))
    return Comparison(number, network, which, names, values, estimate(values, confidence), tuple(obstacles))


def _corruption_gains(runs: Sequence[RunResults], confidence: float) -> list[Comparison]:
    """STS minus TMA in the mean over ImageNet-C's 75 cells, seed by seed, among runs that are otherwise the same."""
    groups: dict[tuple[str, str, str], dict[str, dict[Any, _Corrupted]]] = {}
    for run in runs:
        shared = {k: v for k, v in run.conditions.items() if k not in ("smoothing", "granularity")}
        for entry in run.entries:
            if entry["evaluation"] == "imagenet-c" and entry["metric"] == "top1":
                key = (json.dumps(shared, sort_keys=True), str(entry["network"]), str(entry["which"]))
                kind = str(run.conditions.get("smoothing"))
                found = groups.setdefault(key, {}).setdefault(kind, {})
                found[_seed_key(run)] = (run.run, float(entry["value"]), _foreign_images(entry))
    pairs = {key: _pairs(kinds) for key, kinds in groups.items() if "sts" in kinds and "tma" in kinds}
    return [_gain(key, found, confidence) for key, found in pairs.items() if found]


def _foreign_images(entry: Mapping[str, Any]) -> frozenset[str]:
    """In what the images were not those of ImageNet-C as it was released."""
    count, source = entry.get("num_images"), dict(entry.get("source") or {}).get("source")
    found = [f"{count} images per cell instead of {IMAGENET_TEST_IMAGES}"] if count != IMAGENET_TEST_IMAGES else []
    return frozenset(found + ([] if source == "released folders" else [f"images {source} instead of released"]))


def _pairs(kinds: Mapping[str, Mapping[Any, _Corrupted]]) -> list[_Corrupted]:
    sts, tma = kinds["sts"], kinds["tma"]
    if set(sts) & set(tma):
        return [(f"{sts[s][0]} - {tma[s][0]}", sts[s][1] - tma[s][1], sts[s][2] | tma[s][2]) for s in sts if s in tma]
    if len(sts) == len(tma) == 1:  # one run of each without a common seed
        (a,), (b,) = sts.values(), tma.values()
        return [(f"{a[0]} - {b[0]}", a[1] - b[1], a[2] | b[2])]
    return []


def _gain(key: tuple[str, str, str], pairs: Sequence[_Corrupted], confidence: float) -> Comparison:
    shared, network, which = key
    conditions = json.loads(shared)
    wanted = {"method": "byol", "dataset": "imagenet", "backbone": "resnet50", "epochs": 200, "global_batch_size": 256}
    obstacles = [
        f"{k} {conditions.get(k, 'unknown')} instead of {v}" for k, v in wanted.items() if conditions.get(k) != v
    ]
    obstacles += [] if network == "teacher" else [f"network {network} instead of teacher"]
    obstacles += sorted(frozenset().union(*(pair[2] for pair in pairs)))
    names, values = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    number = published(*CORRUPTION_GAIN)
    return Comparison(number, network, which, names, values, estimate(values, confidence), tuple(obstacles))


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """A Markdown table, one line per cell; numbers that may not stand beside the paper's are in brackets."""
    if not comparisons:
        raise ConfigError(
            "a table needs at least one comparison, got none: evaluate a run of the paper's methods first"
        )
    lines = [
        "| table | row | column | paper | ours | network | which | beside the paper? |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for c in comparisons:
        ours = str(c.ours) if c.may_stand else f"({c.ours})"
        verdict = "yes" if c.may_stand else "no: " + "; ".join(c.obstacles)
        cells = (c.published.table, c.published.row, c.published.column, c.published.printed, ours, c.network, c.which)
        lines.append(f"| {' | '.join(cells)} | {verdict} |")
    return "\n".join(lines) + "\n"
