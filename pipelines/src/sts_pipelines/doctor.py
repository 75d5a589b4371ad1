"""What a run folder, a checkpoint or a backbone is, and whether a run can go on from it."""

import json
from pathlib import Path
from typing import Any

from sts_methods import load_backbone
from sts_methods.checkpoint import CheckpointError, CheckpointStore, read_checkpoint
from sts_pipelines.errors import UsageError

NEEDED = ("method", "optimizer", "scaler", "smoother")
"""Parts of a checkpoint without which a run cannot go on."""


def examine(path: str) -> tuple[str, bool]:
    """A description of `path`, and whether it is healthy: resumable, or for a backbone intact."""
    place = Path(path)
    if not place.exists():
        raise UsageError(f"{path} does not exist: pass a run folder, a checkpoint folder or a backbone file")
    if place.is_file():
        return _backbone(place)
    if (place / "manifest.json").is_file():
        lines, healthy = _checkpoint(place)
        return "\n".join([f"checkpoint {place}", *lines, _verdict(healthy)]), healthy
    if (place / "checkpoints").is_dir() or (place / "config.yaml").is_file():
        return _run(place)
    raise UsageError(f"{path} is neither a run folder nor a checkpoint: it has no config.yaml and no manifest.json")


def _run(folder: Path) -> tuple[str, bool]:
    store = CheckpointStore(folder / "checkpoints")
    lines = [f"run {folder}", *_files(folder)]
    intact: list[int] = []
    for step in reversed(store.steps()):
        detail, healthy = _checkpoint(store.path(step))
        intact += [step] if healthy else []
        # The newest intact one is described in full, the others in a word.
        first = healthy and len(intact) == 1
        lines += [f"checkpoint at step {step}: {'intact' if healthy else 'DAMAGED'}"]
        lines += detail if first or not healthy else []
    if not store.steps():
        lines.append("no checkpoints yet: it would start from the beginning")
    elif intact and intact[0] != store.steps()[-1]:
        lines.append(f"the newest checkpoint is damaged: it would go on from step {intact[0]}")
    healthy = bool(intact)
    return "\n".join([*lines, _verdict(healthy)]), healthy


def _files(folder: Path) -> list[str]:
    lines = []
    for network in ("teacher", "student"):
        if (folder / f"{network}.safetensors").is_file():
            _, healthy = _backbone(folder / f"{network}.safetensors")
            lines.append(f"{network}: {'saved, intact' if healthy else 'DAMAGED'}")
        else:
            lines.append(f"{network}: not saved yet, training has not finished")
    results = folder / "results.json"
    if results.is_file():
        entries = json.loads(results.read_text())["entries"]
        names = sorted({f"{entry['evaluation']} ({entry['network']})" for entry in entries})
        lines.append(f"results: {', '.join(names)}")
    return lines


def _checkpoint(folder: Path) -> tuple[list[str], bool]:
    try:
        state = read_checkpoint(folder)
    except (CheckpointError, RuntimeError) as error:
        return [f"  {' '.join(str(error).split())}"], False
    missing = [name for name in NEEDED if state.get(name) is None]
    lines = [*_describe(state), *(f"  MISSING: {name}" for name in missing)]
    return lines, not missing


def _describe(state: dict[str, Any]) -> list[str]:
    meta = state["meta"]
    config, metrics = meta["config"], meta["metrics"]
    smoothing = config["smoothing"]
    applied = f"m={metrics.get('momentum', '?')}, p={metrics.get('preserve_probability', '?')}"
    return [
        f"  method: {config['method']['name']}, backbone {config['method'].get('backbone', '?')}",
        f"  step: {meta['step']:,} (epoch {meta['epoch']:.2f}), written by {meta['world_size']} workers",
        f"  smoothing: m={smoothing['momentum']}, p={smoothing['preserve_probability']}, {smoothing['granularity']}s, "
        f"schedule {config['momentum_schedule']}; last applied {applied}",
        f"  teacher's buffers: {smoothing['buffers']}",
        f"  networks: {_networks(state['method'])}",
        f"  label split: {meta['label_split'] or 'none, all images are unlabelled'}",
        f"  bank: {', '.join(config['bank']) or 'none'}",
    ]


def _networks(tensors: dict[str, Any]) -> str:
    names = {name: [key for key in tensors if key.startswith(f"{name}.")] for name in ("student", "teacher")}
    others = sorted({key.split(".")[0] for key in tensors} - set(names))
    parts = [f"{name} with {len(keys)} tensors" for name, keys in names.items() if keys]
    return ", ".join([*parts, *others])


def _backbone(path: Path) -> tuple[str, bool]:
    try:
        _, manifest = load_backbone(path)
    except Exception as error:  # whatever is wrong with the file is the finding
        return f"backbone {path}: DAMAGED ({' '.join(str(error).split())})", False
    what = f"{manifest['network']} of {manifest['method']} at step {manifest['step']:,}"
    return f"backbone {path}: {what}, {manifest['backbone']}, {manifest['tensors']} tensors, intact", True


def _verdict(healthy: bool) -> str:
    return "everything needed to resume is there and intact" if healthy else "NOT RESUMABLE"
