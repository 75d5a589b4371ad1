"""Trainings that start from weights that somebody has trained before."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.models._hub import save_for_hf
from torch import Tensor, nn

from sts_core import CheckpointError, ConfigError
from sts_core.fields import outcome_relevant
from sts_methods import (
    ByolConfig,
    DataConfig,
    InitialConfig,
    LocalRuntime,
    TrainingConfig,
    build_backbone,
    build_method,
    fit,
    load_backbone,
    read_checkpoint,
    save_backbone,
)
from sts_methods.networks.heads import initialised_from
from sts_methods.training.initial import start_from_
from tests.methods.training import tiny_training as tiny

METHOD = ByolConfig(backbone="test_resnet", hidden_dim=8, projection_dim=8)
State = dict[str, Tensor]


def trained(seed: int = 7) -> nn.Module:
    """A network that does not come from the seed of any test's training."""
    with initialised_from(seed):
        return build_backbone("test_resnet")


def config(weights: Path | str | None, **changes: Any) -> TrainingConfig:
    values: dict[str, Any] = {
        "method": METHOD,
        "initial": InitialConfig(weights=None if weights is None else str(weights)),
        "data": DataConfig(image_size=12, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        "global_batch_size": 16,
        "steps": 4,
        "checkpoint_every_steps": 2,
        "log_every_steps": 1,
    }
    return TrainingConfig(**(values | changes))


def run_folder(folder: Path) -> Path:
    for network, seed in (("teacher", 7), ("student", 8)):
        about: dict[str, Any] = {"backbone": "test_resnet", "stem": "imagenet", "network": network}
        save_backbone(folder / network, trained(seed), method="byol", step=3, **about)
    return folder


def hub_folder(folder: Path) -> Path:
    module = timm.create_model("test_resnet", num_classes=0)
    module.load_state_dict(trained().state_dict())
    save_for_hf(module, str(folder), safe_serialization=True)
    return folder


def moco_file(folder: Path) -> Path:
    def behind(prefix: str, module: nn.Module) -> State:
        return {prefix + name: tensor for name, tensor in module.state_dict().items()}

    state = behind("module.encoder_q.", trained()) | behind("module.encoder_k.", trained(8))
    torch.save({"epoch": 200, "state_dict": state}, folder / "moco.pth.tar")
    return folder / "moco.pth.tar"


def checkpoint_of_ours(folder: Path) -> Path:
    method = build_method(METHOD, seed=0)
    method.backbone("teacher").load_state_dict(trained().state_dict())
    torch.save({"method": method.state_dict()}, folder / "state.pt")
    return folder / "state.pt"


SOURCES: dict[str, Callable[[Path], Path]] = {
    "a run": run_folder,
    "a saved backbone": lambda folder: run_folder(folder) / "teacher.safetensors",
    "a hub folder": hub_folder,
    "a published file": moco_file,
    "a checkpoint of ours": checkpoint_of_ours,
}


def started(initial: InitialConfig) -> tuple[nn.Module, Any]:
    method = build_method(METHOD, seed=0)
    return method, start_from_(method, initial, METHOD)


@pytest.mark.parametrize("source", SOURCES)
def test_both_backbones_start_from_the_weights_and_the_heads_from_the_seed(source: str, tmp_path: Path) -> None:
    method, _ = started(InitialConfig(weights=str(SOURCES[source](tmp_path))))
    fresh = build_method(METHOD, seed=0)
    for network in (method.student, method.teacher):
        tiny.assert_same_bits(network.backbone.state_dict(), trained().state_dict())
    for part in ("head", "predictor"):
        tiny.assert_same_bits(
            method.student.get_submodule(part).state_dict(), fresh.student.get_submodule(part).state_dict()
        )


@pytest.mark.parametrize("name", ["test_resnet.r160_in1k", "hf-hub:somebody/photos"])
def test_names_of_timm_and_of_the_hub_give_what_is_downloaded(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_folder(tmp_path)
    asked: list[tuple[str, str]] = []

    def download(repo_id: str, filename: str, **options: Any) -> str:
        asked.append((repo_id, filename))
        return str(tmp_path / filename)

    monkeypatch.setattr("timm.models._hub.hf_hub_download", download)
    method, origin = started(InitialConfig(weights=name))
    tiny.assert_same_bits(method.teacher.backbone.state_dict(), trained().state_dict())
    assert ({"hf-hub:somebody/photos": "somebody/photos"}.get(name, "timm/" + name), "model.safetensors") in asked
    assert origin.source == name
    assert origin.statistics == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("source", "chosen"), [(run_folder, {"network": "student"}), (moco_file, {"prefix": "module.encoder_k"})]
)
def test_the_other_network_of_a_source_can_be_chosen(
    source: Callable[[Path], Path], chosen: dict[str, Any], tmp_path: Path
) -> None:
    method, _ = started(InitialConfig(weights=str(source(tmp_path)), **chosen))
    tiny.assert_same_bits(method.student.backbone.state_dict(), trained(8).state_dict())


def test_the_digest_is_that_of_the_tensors_whatever_holds_them(tmp_path: Path) -> None:
    digests = set()
    for number, make in enumerate(SOURCES.values()):
        (tmp_path / str(number)).mkdir()
        digests.add(started(InitialConfig(weights=str(make(tmp_path / str(number)))))[1].sha256)
    assert len(digests) == 1
    other = InitialConfig(weights=str(run_folder(tmp_path)), network="student")
    assert started(other)[1].sha256 not in digests


def test_a_training_goes_on_from_the_weights_and_remembers_them(tmp_path: Path) -> None:
    source = run_folder(tmp_path)
    first = fit(config(source, steps=1), LocalRuntime(tmp_path / "one", progress=False))
    assert not torch.equal(first.backbone("student").conv1[0].weight, trained().conv1[0].weight)
    fresh = fit(config(None, steps=1), LocalRuntime(tmp_path / "fresh", progress=False))
    assert not torch.allclose(first.backbone("student").conv1[0].weight, fresh.backbone("student").conv1[0].weight)
    _, manifest = load_backbone(tmp_path / "one" / "teacher")
    assert manifest["initial"]["source"] == str(source)
    assert manifest["initial"]["found"] == "teacher of byol at step 3"
    assert manifest["mean"] == [0.5, 0.5, 0.5]
    saved = read_checkpoint(tmp_path / "one" / "checkpoints" / "step-00000001")["meta"]["initial"]
    assert saved == manifest["initial"]
    told = json.loads((tmp_path / "one" / "training.json").read_text())
    assert told["conditions"]["initial_weights"] == told["settings"]["initial.weights"] == str(source)
    assert "initial" not in load_backbone(tmp_path / "fresh" / "teacher")[1]


def test_a_run_resumes_to_the_same_bits_when_the_weights_it_started_from_are_gone(tmp_path: Path) -> None:
    source = moco_file(tmp_path)
    straight = fit(config(source), LocalRuntime(tmp_path / "straight", progress=False))
    with pytest.raises(tiny.CrashError):
        fit(config(source), tiny.CrashingRuntime(tmp_path / "cut", 2))
    source.unlink()
    resumed = fit(config(source), LocalRuntime(tmp_path / "cut", progress=False))
    tiny.assert_same_bits(tiny.weights(straight), tiny.weights(resumed))
    manifests = [load_backbone(tmp_path / name / "teacher")[1] for name in ("straight", "cut")]
    assert manifests[0]["initial"] == manifests[1]["initial"]


class EarlierRuntime(LocalRuntime):
    """Restores what a version left that knew of no initial weights."""

    def restore(self) -> dict[str, Any] | None:
        state = super().restore()
        if state is not None:
            del state["meta"]["initial"], state["meta"]["config"]["initial"]
        return state


def test_runs_from_before_there_were_initial_weights_keep_their_digest_and_resume(tmp_path: Path) -> None:
    assert "initial" not in outcome_relevant(config(None))
    assert outcome_relevant(config("x"))["initial"]["weights"] == "x"
    with pytest.raises(tiny.CrashError):
        fit(config(None), tiny.CrashingRuntime(tmp_path, 2))
    assert fit(config(None), EarlierRuntime(tmp_path, progress=False)).step == 4


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda folder: folder / "nothing.pth", "does not exist, and is no name of timm's"),
        (lambda folder: "resnet500", "does not exist, and is no name of timm's"),
        (lambda folder: other_network(folder), r"here test_resnet: all 90 tensors .* missing"),
        (lambda folder: damaged(folder), "cannot be read as a checkpoint"),
        (lambda folder: cut_short(folder), r"behind 'state_dict\.module\.encoder_q\.' 1 of 90 are not"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_sentence_and_change_nothing(
    weights: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    method = build_method(METHOD, seed=0)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"initial\.weights must hold method\.backbone") as caught:
        start_from_(method, InitialConfig(weights=str(weights(tmp_path))), METHOD)
    assert caught.match(message)
    assert "\n" not in str(caught.value)
    tiny.assert_same_bits(before, method.state_dict())


def other_network(folder: Path) -> Path:
    about: dict[str, Any] = {"backbone": "wrn_10_1", "stem": "cifar", "network": "teacher"}
    return save_backbone(folder / "teacher", build_backbone("wrn_10_1", stem="cifar"), method="byol", step=3, **about)


def damaged(folder: Path) -> Path:
    file = moco_file(folder)
    file.write_bytes(file.read_bytes()[:1000])
    return file


def cut_short(folder: Path) -> Path:
    file = moco_file(folder)
    state = torch.load(file, weights_only=True)
    for letter in "qk":
        del state["state_dict"][f"module.encoder_{letter}.layer4.0.conv1.weight"]
    torch.save(state, file)
    return file


def test_images_that_are_normalised_otherwise_than_for_the_weights_are_told(tmp_path: Path) -> None:
    source = hub_folder(tmp_path / "hub")
    data = DataConfig(image_size=12)
    runtime = LocalRuntime(tmp_path / "run", progress=False)
    with pytest.warns(UserWarning, match=r"--data\.mean 0\.5,0\.5,0\.5 --data\.std 0\.5,0\.5,0\.5 normalises"):
        fit(config(source, data=data, steps=1), runtime)
    shutil.rmtree(tmp_path / "run")
    fit(config(source, steps=1), runtime)  # a warning would be an error here


def test_settings_without_a_meaning_are_refused() -> None:
    with pytest.raises(ConfigError, match="prefix is for a file"):
        InitialConfig(prefix="module.")
    with pytest.raises(ConfigError, match="teacher or student"):
        InitialConfig(weights="x", network="both")  # type: ignore[arg-type]
