"""Run folders on disk: which runs a path holds, the pipeline that made each, and what its reports are told of it."""

import contextlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sts_core.fields import flattened
from sts_methods import CheckpointError, CheckpointStore, TrainingConfig, describe_training, read_manifest
from sts_pipelines.config.flags import apply_flags
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.reading import from_dict
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.errors import SchemaError, UsageError

CONTROL = "sts run {folder}/config.yaml --smoothing.momentum {momentum} --smoothing.preserve-probability 0"
"""The command that trains the moving average which a run is compared with."""


def run_folders(path: str, *patterns: str) -> list[Path]:
    """The folder of a run, or the runs (with a config.yaml or a file like `patterns`) of a comparison or a sweep."""
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        return [folder]
    return sorted({file.parent for one in ("*/config.yaml", *patterns) for file in folder.glob(one)}) or [folder]


def read_run(folder: Path, overrides: Sequence[str] = ()) -> PipelineConfig:
    """The pipeline that made a run folder, with overrides."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UsageError(f"{folder} is not a run folder (it has no config.yaml): pass one that sts run made")
    plain = read_yaml(path.read_text(encoding="utf-8", errors="replace"), source=str(path))
    plain.pop("kind", None)
    return from_dict(PipelineConfig, apply_flags(PipelineConfig, plain, overrides))


def newest_meta(run: Path) -> dict[str, Any]:
    """What a run's newest readable checkpoint says of it; nothing without one."""
    store = CheckpointStore(run / "checkpoints")
    for step in reversed(store.steps()):
        with contextlib.suppress(CheckpointError):
            meta: dict[str, Any] = read_manifest(store.path(step))["meta"]
            return meta
    return {}


def describe_run(pipeline: PipelineConfig) -> dict[str, Any]:
    """What sts_methods says of the training, with the settings of the whole pipeline."""
    return describe_training(pipeline.training) | {"settings": flattened(plain_of(pipeline))}


def describe_old_run(folder: Path) -> dict[str, Any]:
    """What training.json would hold in a run that is older than this file; nothing where its config tells nothing."""
    file = next((folder / name for name in ("config.yaml", "config.json") if (folder / name).is_file()), None)
    if file is None:
        return {}
    plain = read_yaml(file.read_text(encoding="utf-8", errors="replace"), source=str(file))  # JSON is YAML
    kind = plain.pop("kind", None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they were given when the run was started
            if kind == "pipeline" or "name" in plain:
                control = {"control": CONTROL} if file.suffix == ".yaml" else {}
                return describe_run(from_dict(PipelineConfig, plain)) | control
            method = {"kind" if name == "name" else name: value for name, value in plain.get("method", {}).items()}
            return describe_training(from_dict(TrainingConfig, plain | {"method": method}))
    except SchemaError as error:
        warnings.warn(f"{file} is no config of this version, so that reports know nothing of it: {error}", stacklevel=2)
        return {}
