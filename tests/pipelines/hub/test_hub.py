"""From a run to a repository of the hub: the folder, its card, and the push that nobody gets without asking."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import huggingface_hub
import numpy as np
import pytest
import timm
import torch
from PIL import Image

from sts_methods import load_backbone
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.hub.card import training_yaml
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished and evaluated run of two steps."""
    storage = tmp_path_factory.mktemp("runs")
    flags = ["--steps", "2", "--cluster.storage-path", str(storage), "--evaluation.after-training", "knn"]
    pipeline = resolve("byol-digits-sts", flags)
    assert isinstance(pipeline, PipelineConfig)
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    return pipeline.folder


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What takes the place of the hub, and refuses arguments that the real client would."""
    stand_in = create_autospec(huggingface_hub.HfApi, spec_set=True)
    address = create_autospec(huggingface_hub.RepoUrl, instance=True)
    address.repo_id = "somebody/digits"
    address.__str__ = lambda self: "https://huggingface.co/somebody/digits"
    stand_in.return_value.create_repo.return_value = address
    monkeypatch.setattr(huggingface_hub, "HfApi", stand_in)
    return stand_in


def exported(run: Path, output: Path, *flags: str) -> str:
    assert main(["export", str(run), "--to", "hub-folder", "--output", str(output), *flags]) == 0
    return (output / "README.md").read_text()


def test_the_folder_holds_the_network_its_card_and_the_training(run: Path, tmp_path: Path, hub: Any) -> None:
    output = tmp_path / "digits"
    card = exported(run, output)
    names = ["README.md", "config.json", "model.safetensors", "training.yaml"]
    assert sorted(file.name for file in output.iterdir()) == names
    theirs = timm.create_model(f"local-dir:{output}", pretrained=True).eval()
    ours, _ = load_backbone(run / "teacher")
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(theirs(images), ours(images))
    assert str(run.parent) not in card + (output / "training.yaml").read_text()
    hub.assert_not_called()


def test_what_is_given_away_names_no_place_of_this_machine() -> None:
    places = ["--data.root", "/secret/photos", "--initial.weights", "/secret/moco.pth"]
    pipeline = resolve("byol-photos", [*places, "--cluster.storage-path", "/secret/runs"])
    assert isinstance(pipeline, PipelineConfig)
    text = training_yaml(pipeline)
    assert "secret" not in text
    assert read_yaml(text, source="training")["initial"]["weights"] == "moco.pth"


def test_the_card_tells_results_smoothing_data_and_the_command(run: Path, tmp_path: Path) -> None:
    card = exported(run, tmp_path / "digits")
    _, front, body = card.split("---\n", 2)
    assert read_yaml(front, source="card") == {
        "library_name": "timm",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["image-feature-extraction", "timm", "sts", "byol"],
    }
    assert "the teacher of byol, trained on digits for 2 steps by STS" in body
    assert re.search(r"\| teacher top-1.* \| student top-1", body)
    assert "one seed each: a difference needs several to mean something" in body
    assert "m = 0.9 (constant), p = 0.7; units are layers" in body
    assert "same expected pull has m = 0.97" in body
    assert re.search(r"Images: 1,?\d+ images, sha256 \w+; views \(byol\) of 12 pixels", body)
    assert "2 steps of 64 images, seed 0, from random weights" in body
    assert "`sts run training.yaml` trains it again" in body


def test_the_training_beside_the_card_is_the_run_s(run: Path, tmp_path: Path) -> None:
    exported(run, tmp_path / "digits")
    again = resolve(str(tmp_path / "digits" / "training.yaml"))
    assert isinstance(again, PipelineConfig)
    assert again.run_name == run.name


def test_the_example_of_the_card_runs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = exported(run, tmp_path / "digits")
    (example,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    names: dict[str, Any] = {"image": Image.fromarray(pixels)}
    monkeypatch.chdir(tmp_path)
    exec(example, names)
    assert list(names["features"].shape) == [1, 96]
    assert "# of a PIL image; [1, 96]" in example.replace("  # of", "# of")


def test_a_push_makes_a_private_repository_and_sends_the_folder_in_one_commit(
    run: Path, tmp_path: Path, hub: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    card = exported(run, tmp_path / "digits", "--push", "somebody/digits", "--network", "student")
    assert 'timm.create_model("hf-hub:somebody/digits", pretrained=True)' in card
    assert "the student of byol" in card
    client = hub.return_value
    client.create_repo.assert_called_once_with("somebody/digits", private=True, exist_ok=True)
    ((), sent) = client.upload_folder.call_args
    assert (sent["repo_id"], sent["folder_path"]) == ("somebody/digits", tmp_path / "digits")
    assert "pushed to https://huggingface.co/somebody/digits" in capsys.readouterr().out


def refused(hub: Any) -> None:
    hub.return_value.upload_folder.side_effect = ConnectionError("The hub cannot be reached\nCheck your network.")


@pytest.mark.parametrize(
    ("flags", "fail", "message"),
    [
        (["--push", "digits"], None, "OWNER/NAME, got 'digits'"),
        (["--push", "https://huggingface.co/a/b"], None, "OWNER/NAME"),
        (["--push", "a/b", "--to", "timm"], None, "--push needs --to hub-folder, got --to timm"),
        (["--push", "somebody/digits"], refused, "could not be pushed (The hub cannot be reached): "),
    ],
)
def test_what_cannot_be_pushed_is_one_line(
    flags: list[str],
    fail: Callable[[Any], None] | None,
    message: str,
    run: Path,
    tmp_path: Path,
    hub: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if fail is not None:
        fail(hub)
    code = main(["export", str(run), "--to", "hub-folder", "--output", str(tmp_path / "digits"), *flags])
    assert code in (1, 2)
    (said,) = capsys.readouterr().err.splitlines()
    assert message in said
    assert (tmp_path / "digits").exists() == (fail is not None), "a folder that is there can be pushed later"
