"""What a run folder, a checkpoint or a backbone is, and whether a run can resume from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from sts_core import Network, StsError, doctor
from sts_eval import read_results
from sts_methods import CheckpointError, CheckpointStore, MetricsLog, load_backbone, read_checkpoint
from sts_pipelines.config.run_folder import read_run, run_folders
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.errors import UsageError

NEEDED = ("method", "optimizer", "scaler", "smoother")
"""Parts of a checkpoint without which a run cannot resume."""

_SAVED_AGAIN = "the command that made the run saves {} again"
_MEASURED_AGAIN = "sts evaluate measures it again"


def examine(path: str, later: str | None = None, *, steps: int | None = None) -> tuple[str, bool]:
    """A description of `path`, and whether it is healthy: resumable, for a backbone intact.

    Of other people's checkpoints, and of any two of one run, it is what their averages are worth.
    """
    if later is not None or _is_foreign(Path(path)):
        findings = doctor.examine(path, later, steps=steps)
        return "\n".join(map(str, findings)), not any(finding.wrong for finding in findings)
    place, *others = run_folders(path)
    if others or place != Path(path):
        found = [examine(str(run)) for run in (place, *others)]
        return "\n\n".join(text for text, _ in found), all(healthy for _, healthy in found)
    if place.suffix == ".safetensors" and place.is_file():
        return _backbone(place)
    if (place / "manifest.json").is_file():
        lines, healthy = _checkpoint(place)
        return "\n".join([f"checkpoint {place}", *lines, _verdict(healthy)]), healthy
    if (place / "checkpoints").is_dir() or any((place / f"config.{kind}").is_file() for kind in ("yaml", "json")):
        return _run(place)
    problem = "has no config.yaml and no manifest.json" if place.is_dir() else "is none of them"
    raise UsageError(
        f"sts doctor needs a run folder, a checkpoint (of anybody's) or a backbone (.safetensors), {path} "
        f"{problem if place.exists() else 'does not exist'}: check the path"
    )


def _is_foreign(place: Path) -> bool:
    """Whether others wrote it: a file without our manifest, or a folder that Hugging Face's libraries fill."""
    if place.is_file():
        return place.suffix != ".safetensors" or not place.with_suffix(".json").is_file()
    files = ("model.safetensors", "model.safetensors.index.json", "trainer_state.json")
    return any((place / name).is_file() for name in files) or any(place.glob("*_ema/*.safetensors"))


def _run(folder: Path) -> tuple[str, bool]:
    store = CheckpointStore(folder / "checkpoints")
    config = _damage(folder / "config.yaml", read_run)
    if config and not (folder / "config.yaml").exists() and (folder / "config.json").exists():
        config = _damage(folder / "config.json", _fitted)
    results = _damage(folder / "results.json", _results)
    lines = [f"run {folder}", *_networks_saved(folder), *config, *(results or _results(folder))]
    if unread := MetricsLog(folder / "metrics.jsonl").num_damaged():
        lines.append(f"metrics.jsonl: {unread} DAMAGED lines, which are left out")
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
        lines.append(f"the newest checkpoint is damaged: it would resume from step {intact[0]}")
    healthy = bool(intact) and not config
    damaged = [network for network in get_args(Network) if f"{network}: DAMAGED" in lines]
    remedies = [_SAVED_AGAIN.format(" and ".join(damaged))] * bool(damaged) + [_MEASURED_AGAIN] * bool(results)
    lines.append("; ".join(["resumable", *remedies]) if healthy and remedies else _verdict(healthy))
    return "\n".join(lines), healthy and not results


def _damage(file: Path, read: Callable[[Path], object]) -> list[str]:
    """What is wrong with a file that `read` reads from a run folder, in a line, if anything is."""
    if file.name == "config.yaml" and not file.exists():
        return [f"{file.name}: MISSING, the command that made the run writes it again"]
    try:
        read(file.parent)
    except (StsError, RecursionError) as error:
        return [f"{file.name}: DAMAGED ({' '.join(str(error).split())})"]
    return []


def _fitted(folder: Path) -> dict[str, Any]:
    """The config of a run that sts_methods' `fit` made without a pipeline; JSON is YAML."""
    file = folder / "config.json"
    return read_yaml(file.read_text(encoding="utf-8", errors="replace"), source=str(file))


def _networks_saved(folder: Path) -> list[str]:
    lines = []
    for network in get_args(Network):
        if (folder / f"{network}.safetensors").is_file() or (folder / f"{network}.json").is_file():
            _, healthy = _backbone(folder / f"{network}.safetensors")
            lines.append(f"{network}: {'saved, intact' if healthy else 'DAMAGED'}")
        else:
            lines.append(f"{network}: not saved yet, training has not finished")
    return lines


def _results(folder: Path) -> list[str]:
    if not (folder / "results.json").is_file():
        return []
    names = sorted({f"{entry['evaluation']} ({entry['network']})" for entry in read_results(folder).entries})
    return [f"results: {', '.join(names)}"]


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
    config, metrics, initial = meta["config"], meta["metrics"], meta.get("initial")
    smoothing = config["smoothing"]
    applied = f"m={metrics.get('momentum', '?')}, p={metrics.get('preserve_probability', '?')}"
    return [
        f"  method: {config['method']['name']}, backbone {config['method'].get('backbone', '?')}",
        f"  step: {meta['step']:,} (epoch {meta['epoch']:.2f}), written by {meta['world_size']} workers",
        f"  smoothing: m={smoothing['momentum']}, p={smoothing['preserve_probability']}, {smoothing['granularity']}s, "
        f"schedule {config['momentum_schedule']}; last applied {applied}",
        f"  teacher's buffers: {smoothing['buffers']}",
        f"  networks: {_networks(state['method'])}",
        *([f"  backbones started from: {initial['source']} ({initial['found']})"] if initial else []),
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
        what = f"{manifest['network']} of {manifest['method']} at step {manifest['step']:,}"
        return f"backbone {path}: {what}, {manifest['backbone']}, {manifest['tensors']} tensors, intact", True
    except Exception as error:  # whatever is wrong with the file is the finding
        return f"backbone {path}: DAMAGED ({' '.join(str(error).split())})", False


def _verdict(healthy: bool) -> str:
    return "everything needed to resume is there and intact" if healthy else "NOT RESUMABLE"
