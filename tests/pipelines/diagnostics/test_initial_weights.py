"""Continued pre-training: what is looked at before a run that starts from somebody's weights, and what it keeps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sts_methods import build_backbone, load_backbone
from sts_methods.networks.heads import initialised_from
from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.main import main
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.run_folder import run_folders
from sts_pipelines.diagnostics.preflight import check_initial_weights

FLAGS = ["--method.backbone", "test_resnet", "--method.hidden-dim", "8", "--method.projection-dim", "8"]
FLAGS += ["--data.image-size", "32", "--data.num-workers", "0", "--global-batch-size", "4"]
FLAGS += ["--epochs", "null", "--steps", "2", "--cluster.num-workers", "0", "--cluster.use-gpu", "false"]


def network(seed: int = 7) -> nn.Module:
    with initialised_from(seed):
        return build_backbone("test_resnet")


def published(folder: Path, seed: int = 7) -> Path:
    state = {f"module.encoder_q.{name}": tensor for name, tensor in network(seed).state_dict().items()}
    torch.save({"state_dict": state}, folder / "moco.pth")
    return folder / "moco.pth"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A short BYOL on eight photographs, from weights in moco.pth."""
    (tmp_path / "photos").mkdir()
    for number, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (8, 40, 40, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.jpg")
    places = ["--data.root", str(tmp_path / "photos"), "--cluster.storage-path", str(tmp_path / "runs")]
    return ["byol-photos", *FLAGS, *places, "--initial.weights", str(tmp_path / "moco.pth")]


def run_of(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").glob("byol-photos-*")
    return folder


def test_photographs_train_on_from_published_weights_which_the_run_remembers(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = published(tmp_path)
    assert main(["check", *command, "--no-placement"]) == 0
    found = f"backbones start from {source} (behind 'state_dict.module.encoder_q.'; sha256 "
    assert found in capsys.readouterr().out
    assert main(["run", *command]) == 0
    assert found in capsys.readouterr().err
    folder = run_of(tmp_path)
    trained, manifest = load_backbone(folder / "teacher")
    assert manifest["initial"]["source"] == str(source)
    moved = [(a - b).abs().max().item() for a, b in zip(trained.parameters(), network().parameters(), strict=True)]
    assert 0 < max(moved) < 0.2, "two steps from the published weights"
    assert json.loads((folder / "training.json").read_text())["conditions"]["initial_weights"] == str(source)
    assert main(["doctor", str(folder)]) == 0
    assert f"backbones started from: {source}" in capsys.readouterr().out


def test_a_run_that_has_begun_goes_on_without_its_initial_weights_but_not_with_others(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = published(tmp_path)
    assert main(["run", *command]) == 0
    published(tmp_path, seed=8)
    assert main(["run", *command]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "started from other weights" in said
    assert "put them back, or set another --name" in said
    source.unlink()
    assert main(["run", *command]) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--initial.weights", "nothing.pth"], "nothing.pth does not exist, and is no name of timm's"),
        (["--method.backbone", "resnet18"], "initial.weights must hold method.backbone, here resnet18: "),
        (["--initial.prefix", "module.encoder_k"], "behind 'module.encoder_k.' 90 of 90 are not"),
        (["--initial.network", "both"], "initial.network must be one of"),
    ],
)
def test_weights_that_do_not_fit_are_told_before_the_run_starts(
    flags: list[str], message: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(tmp_path)
    for verb in ("check", "run"):
        assert main([verb, *command, *flags]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert message in said
    assert not (tmp_path / "runs").exists()


def test_runs_from_other_weights_have_other_names_and_those_from_none_keep_theirs(command: list[str]) -> None:
    from sts_pipelines.cli.resolve import resolve

    def name(*flags: str) -> Any:
        config: Any = resolve("byol-photos", [*FLAGS, *flags])
        return config.run_name

    assert name() != name("--initial.weights", "a") != name("--initial.weights", "b")
    assert name("--initial.weights", "a") != name("--initial.weights", "a", "--initial.network", "student")
    assert name("--initial.weights", "null") == name()


def test_a_run_that_starts_from_no_trained_weights_has_nothing_to_refuse(tmp_path: Path) -> None:
    pipeline = CATALOG["byol-digits-sts"].build()
    assert isinstance(pipeline, PipelineConfig)
    assert run_folders(str(tmp_path)) == [tmp_path]  # also a folder without a checkpoint counts as a run's
    check_initial_weights(pipeline, tmp_path)
