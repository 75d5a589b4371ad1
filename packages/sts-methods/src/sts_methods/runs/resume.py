"""Whether a checkpoint belongs to the run that wants to resume from it."""

import json
import warnings
from collections.abc import Collection, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from sts_core import StateError
from sts_core.fields import flattened


def config_to_json(config: Any) -> dict[str, Any]:
    """A config dataclass as JSON values, each nested config as an object."""
    assert is_dataclass(config)
    assert not isinstance(config, type)
    values: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return values


def differences(saved: Mapping[str, Any], current: Mapping[str, Any], incidental: Collection[str]) -> list[str]:
    """`name was X and is now Y` for each setting that differs and is not `incidental`."""
    before, now = flattened(saved), flattened(current)
    names = [*now, *(name for name in before if name not in now)]
    return [
        f"{name} was {before.get(name)!r} and is now {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name) and name not in incidental
    ]


def check_resumable(
    meta: Mapping[str, Any],
    *,
    config: Mapping[str, Any],
    incidental: Collection[str] = (),
    label_split: str | None,
    images: str | None,
    world_size: int,
) -> None:
    """Raise StateError if the checkpoint's run was another one; say so if only the number of workers changed."""
    changed = differences(meta["config"], config, incidental)
    if changed:
        raise StateError(
            f"a run resumes only under the config it was started with, but {'; '.join(changed)}: "
            f"put the old value{'s' if len(changed) > 1 else ''} back, or choose a new run folder"
        )
    if meta["label_split"] != label_split:
        raise StateError(
            f"a run resumes only with the labels it was started with, but the label split was {meta['label_split']} "
            f"and is now {label_split}: restore the dataset, or choose a new run folder"
        )
    before = meta.get("images")  # checkpoints of earlier versions and data of the user's own have none
    if None not in (before, images) and before != images:
        raise StateError(
            f"a run resumes only with the images it was started with, but they were {before} and are now "
            f"{images}: restore the dataset, or choose a new run folder"
        )
    if meta["world_size"] != world_size:
        warnings.warn(
            f"resuming on {world_size} worker{'s' if world_size > 1 else ''} what ran on {meta['world_size']}: the "
            f"batches and draws are the same, but sums round differently, and rounding grows as in any training",
            UserWarning,
            stacklevel=3,
        )
