"""From files to pairs of student and average, for the layouts in which training code leaves them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from sts_core.errors import CheckpointError
from sts_core.weights import read_weights

State = Mapping[str, Tensor]


class Found(NamedTuple):
    """A student and its average, each with the name under which it was found."""

    student_name: str
    student: State
    average_name: str
    average: State
    step: int | None
    """Optimizer steps so far, where the checkpoint says it."""


# Where training code puts the two, besides the sections of one name for each: (student, average), as dotted paths.
SECTIONS = (
    ("current_model_state", "state_dict"),  # Lightning's WeightAveraging: what it calls state_dict is the average
    ("state_dict", "state_dict_ema"),  # timm
    ("student", "teacher"),  # DINO
    ("model", "model_ema"),
    ("model", "ema"),
    ("model", "ema_model"),
    ("model_state_dict", "ema_state_dict"),
    ("online", "target"),
)
# Modules of one state dict: (student, average).
PREFIXES = (
    ("student.", "teacher."),
    ("encoder_q.", "encoder_k."),
    ("online_network.", "target_network."),
    ("online_encoder.", "target_encoder."),
    ("online_model.", "ema_model."),  # ema-pytorch
    ("base_encoder.", "momentum_encoder."),
    ("backbone.", "backbone_momentum."),
)


def find_pairs(path: str | Path) -> list[Found]:
    """Every student with an average of it that a checkpoint holds."""
    path = Path(path)
    tree = _read_folder(path) if path.is_dir() else read_weights(path)
    step = next((int(tree[name]) for name in ("global_step", "step", "num_updates") if _is_count(tree.get(name))), None)
    found = [*_by_section(tree, step), *_by_prefix(tree, step)]
    if not found:
        names = ", ".join(map(str, list(tree)[:8])) or "none"
        raise CheckpointError(f"no student with an average of it was found in {path}, whose entries are {names}")
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_folder(folder: Path) -> dict[str, Any]:
    """A checkpoint or a finished run of ours, one of transformers with our teachers, or one of diffusers' scripts."""
    if (folder / "state.pt").is_file():
        return _of_sts(read_weights(folder / "state.pt"))
    number = re.search(r"checkpoint-(\d+)$", folder.name)
    step = {"step": int(number[1])} if number else {}
    for model in (part for part in folder.iterdir() if (folder / f"{part.name}_ema").is_dir()):
        both = [_read_model(place, "diffusion_pytorch_model") for place in (model, folder / f"{model.name}_ema")]
        return {"model": both[0], "ema": both[1], **step}
    student = next((found for name in ("model", "student") if (found := _read_model(folder, name))), None)
    if student and (folder / "bank.pt").is_file():
        return {"state_dict": student, "teachers": read_weights(folder / "bank.pt").get("teachers"), **step}
    if student and (folder / "teacher.safetensors").is_file():
        return {"student": student, "teacher": read_weights(folder / "teacher.safetensors"), **step}
    raise CheckpointError(
        f"{folder} must hold state.pt, or teacher.safetensors or bank.pt beside model.safetensors or "
        f"student.safetensors, or folders such as unet and unet_ema"
    )


def _read_model(folder: Path, name: str) -> dict[str, Any]:
    """The weights in one file or in numbered ones, {} where there are none."""
    files = sorted(folder.glob(f"{name}-*-of-*.safetensors")) or [folder / f"{name}.safetensors"]
    return {key: value for file in files if file.is_file() for key, value in read_weights(file).items()}


def _of_sts(tree: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint of sts-methods: the method holds both networks, the bank further teachers."""
    meta = tree.get("meta", {})
    step = meta.get("step") if isinstance(meta, Mapping) else None
    return {**tree.get("method", tree), **({"step": step} if _is_count(step) else {})}


def _by_section(tree: Mapping[str, Any], step: int | None) -> list[Found]:
    found = [
        _found(one, tree[one], other, tree[other], step)
        for one, other in SECTIONS
        if isinstance(tree.get(one), Mapping) and isinstance(tree.get(other), Mapping)
    ]
    for name, teacher in (tree.get("teachers") or {}).items() if isinstance(tree.get("teachers"), Mapping) else ():
        found.append(_found("state_dict", tree["state_dict"], f"teachers.{name}", teacher, step))
    return [one for one in found if one.student.keys() & one.average.keys()]


def _found(one: str, student: Mapping[str, Any], other: str, average: Mapping[str, Any], step: int | None) -> Found:
    """Under the same names: without those of wrappers, and of a student whose part was followed only that part."""
    ours, theirs = _unwrapped(student), _unwrapped(average)
    if not ours.keys() & theirs.keys():
        theirs = {name.removeprefix("ema_model."): tensor for name, tensor in theirs.items()}  # ema-pytorch
        places = {key.removesuffix(name) for name in list(theirs)[-1:] for key in ours if key.endswith(f".{name}")}
        place = max(places, key=lambda place: sum(place + name in ours for name in theirs), default="")
        ours = {name.removeprefix(place): tensor for name, tensor in ours.items() if name.startswith(place)}
    return Found(one, ours, other, theirs, step)


def _by_prefix(tree: Mapping[str, Any], step: int | None) -> list[Found]:
    """Pairs inside one state dict, which may be the file itself or one of its sections."""
    found = []
    for section in (tree, *(value for value in tree.values() if isinstance(value, Mapping))):
        tensors = _unwrapped(section)
        for one, other in PREFIXES:
            parts = [{n.removeprefix(p): t for n, t in tensors.items() if n.startswith(p)} for p in (one, other)]
            if parts[0].keys() & parts[1].keys():
                found.append(Found(one.rstrip("."), parts[0], other.rstrip("."), parts[1], step))
    return found


def _unwrapped(section: Mapping[str, Any]) -> dict[str, Tensor]:
    """Its tensors with values (on the meta device only a shape was saved), by names without those of wrappers."""
    return {
        re.sub(r"^(module\.|_orig_mod\.)+", "", str(name)): value
        for name, value in section.items()
        if isinstance(value, Tensor) and not value.is_meta
    }
