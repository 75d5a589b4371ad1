"""Runs from before there was one config and a training.json are reported, examined and resumed as ever."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sts_eval import load_run
from sts_methods import LocalRuntime, TrainingConfig, describe_training, fit, read_checkpoint, write_checkpoint
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.run_folder import describe_old_run
from sts_pipelines.diagnostics.doctor import examine
from tests.pipelines.conftest import run

Tiny = Callable[..., PipelineConfig]


def grown_old(folder: Path, *, step: int) -> None:
    """Make of a finished run what an earlier version left when it was killed after `step`."""
    networks = [f"{network}.{kind}" for network in ("teacher", "student") for kind in ("safetensors", "json")]
    for name in ("training.json", "results.json", *networks):
        (folder / name).unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        if checkpoint.name > f"step-{step:08d}":
            shutil.rmtree(checkpoint)
    newest = folder / "checkpoints" / f"step-{step:08d}"
    state = read_checkpoint(newest)
    data = state["meta"]["config"]["data"]
    data["recipe"] = data.pop("views")
    shutil.rmtree(newest)
    write_checkpoint(newest, state)
    (folder / "config.json").write_text(json.dumps(state["meta"]["config"]))
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("  views: byol", "  recipe: byol"))


def test_an_old_run_with_two_configs_is_read_and_resumed_to_the_same_bits(tiny: Tiny) -> None:
    pipeline = tiny("byol-digits-sts", steps=4)
    folder = run(pipeline)
    told = json.loads((folder / "training.json").read_text())
    straight = read_checkpoint(folder / "checkpoints" / "step-00000004")["method"]
    grown_old(folder, step=2)
    assert "recipe: byol" in (folder / "config.yaml").read_text()
    assert describe_old_run(folder) == told
    run(pipeline)
    resumed = read_checkpoint(folder / "checkpoints" / "step-00000004")["method"]
    assert straight.keys() == resumed.keys()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)
    assert json.loads((folder / "training.json").read_text()) == told


def test_what_fit_wrote_before_there_was_a_training_json_is_described_from_its_config(
    tiny: Tiny, tmp_path: Path
) -> None:
    config: TrainingConfig = tiny("moco-digits-sts").training
    told = describe_training(config)
    values = {name: value for name, value in told["settings"].items() if "." not in name}
    for path, value in told["settings"].items():
        if "." in path:
            *sections, name = path.split(".")
            place = values
            for section in sections:
                place = place.setdefault(section, {})
            place[{"views": "recipe"}.get(name, name)] = value
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert describe_old_run(tmp_path) == told
    (tmp_path / "results.json").write_text(json.dumps({"format": "sts-results", "run": "old", "entries": []}))
    assert load_run(tmp_path, describe=describe_old_run).conditions["method"] == "moco"


def test_a_config_that_is_no_longer_understood_is_told_and_the_report_knows_nothing_of_it(tmp_path: Path) -> None:
    assert describe_old_run(tmp_path) == {}
    (tmp_path / "config.yaml").write_text("kind: pipeline\nname: odd\nmethod: {kind: unheard_of}\n")
    with pytest.warns(UserWarning, match="is no config of this version"):
        assert describe_old_run(tmp_path) == {}
    with warnings.catch_warnings():
        (tmp_path / "config.yaml").write_text("kind: comparison\nvariants: {}\n")
        warnings.simplefilter("ignore")
        assert describe_old_run(tmp_path) == {}


def test_the_doctor_knows_a_run_that_fit_made_without_a_pipeline(tiny: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "fitted"
    fit(tiny("byol-digits-sts", steps=2).training, LocalRuntime(folder, progress=False))
    text, healthy = examine(str(folder))
    assert healthy, text
    assert "MISSING" not in text
    (folder / "config.json").write_text("{")
    text, healthy = examine(str(folder))
    assert not healthy
    assert "config.json: DAMAGED" in text
