"""The config in a run's folder, as training or a pipeline wrote it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sts_core.errors import StateError

CONFIG_NAMES = ("config.yaml", "config.yml", "config.json")


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
    """The training's config, which may be one level down; a method's kind, as pipelines write it, is its name."""
    inner = config.get("training")
    section = inner if isinstance(inner, Mapping) else config
    method = section.get("method")
    if isinstance(method, Mapping) and "name" not in method and "kind" in method:
        return {**section, "method": {**method, "name": method["kind"]}}
    return section
