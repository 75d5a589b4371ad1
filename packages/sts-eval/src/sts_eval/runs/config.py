"""The config and the metrics in a run's folder, as training or a pipeline wrote them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sts_core import StateError
from sts_core.fields import flattened
from sts_eval.results import RunResults, newest

CONFIG_NAMES = ("config.yaml", "config.yml", "config.json")
METRICS_NAME = "metrics.jsonl"
NOT_RECIPE = (
    *("kind", "name", "seed", "bank", "cluster", "evaluation", "tracking", "method.kind"),
    *("smoothing.momentum", "smoothing.preserve_probability", "smoothing.granularity"),
    *("data.root", "data.num_workers", "channels_last", "compile"),
    *("checkpoint_every_steps", "checkpoint_every_minutes", "keep_checkpoints", "log_every_steps"),
    *("verify_ranks_every_steps", "track_drift"),
)
"""What two runs of one recipe may differ in: seed, smoothing, and how a run is executed, watched and evaluated."""


def read_config(folder: Path) -> Mapping[str, Any]:
    """The first of `CONFIG_NAMES` that `folder` holds, empty where it holds none; a damaged one is an error."""
    file = next((folder / name for name in CONFIG_NAMES if (folder / name).is_file()), None)
    if file is None:
        return {}
    form = "JSON" if file.suffix == ".json" else "YAML"
    try:
        loaded = json.loads(file.read_text()) if form == "JSON" else yaml.safe_load(file.read_text())
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise StateError(f"a config must be {form}, {file} is not ({reason}): restore it from the run") from error
    if not isinstance(loaded, Mapping):
        kind = type(loaded).__name__
        raise StateError(f"a config must hold named values, {file} holds {kind}: restore it from the run")
    return loaded


def training_section(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The training's config, which may be one level down; a method's kind, as pipelines write it, is its name.

    `data.views` was called `data.recipe` in earlier versions.
    """
    inner = config.get("training")
    section = inner if isinstance(inner, Mapping) else config
    data = section.get("data")
    if isinstance(data, Mapping) and "recipe" in data:
        section = {**section, "data": {"views" if name == "recipe" else name: data[name] for name in data}}
    method = section.get("method")
    if isinstance(method, Mapping) and "name" not in method and "kind" in method:
        return {**section, "method": {**method, "name": method["kind"]}}
    return section


def recipe_of(config: Mapping[str, Any]) -> dict[str, str]:
    """All settings of a training but those of `NOT_RECIPE`, by dotted name: runs that share them are seeds or twins."""
    flat = settings_text(training_section(config))
    prefixes = tuple(f"{name}." for name in NOT_RECIPE)
    return {name: value for name, value in flat.items() if name not in NOT_RECIPE and not name.startswith(prefixes)}


def entries_of(results: RunResults, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The newest entry of each kind; its `data` holds only what differs from the data of the training, if anything.

    Features are float32 unless it says otherwise.
    """
    section = training_section(config).get("data")
    usual = {**(section if isinstance(section, Mapping) else {}), "precision": "float32"}
    entries = []
    for entry in results.entries:
        other = {name: value for name, value in entry.get("data", {}).items() if value != usual.get(name)}
        rest = {name: value for name, value in entry.items() if name != "data"}
        entries.append(rest | ({"data": other} if other else {}))
    return [dict(entry) for entry in newest(entries)]


def settings_text(config: Mapping[str, Any]) -> dict[str, str]:
    """{"smoothing.momentum": "0.99", ...}: names as on the command line, values as in YAML or JSON."""
    flat = flattened(config)
    return {name: value if isinstance(value, str) else json.dumps(value, default=str) for name, value in flat.items()}


def read_metrics(file: Path) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl, none without that file; the last may be cut short by a kill, others must be whole."""
    if not file.is_file():
        return []
    lines = file.read_text(errors="replace").splitlines()
    metrics: dict[Any, Mapping[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except ValueError:
            if number == len(lines):
                continue
            value = None
        if not isinstance(value, Mapping):
            raise StateError(
                f"every line of {METRICS_NAME} must be a JSON object, line {number} of {file} is not: delete that line"
            )
        metrics[value.get("step", number)] = value  # steps repeated after a resume count once
    return list(metrics.values())
