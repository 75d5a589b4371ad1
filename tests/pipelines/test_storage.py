"""Runs whose storage is a URI: what is there after a run, and a resume on a machine that has nothing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sts_methods.checkpoint import read_checkpoint
from sts_pipelines.errors import UsageError
from sts_pipelines.pipeline import PipelineConfig
from sts_pipelines.running import run_recipe
from sts_pipelines.storage import Mirror, is_uri, local_folder

Tiny = Callable[..., PipelineConfig]


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()


def test_a_path_is_used_as_it_is_and_a_uri_gets_a_local_folder(tmp_path: Path) -> None:
    assert local_folder(str(tmp_path), "run") == tmp_path / "run"
    assert not is_uri(str(tmp_path))
    one, two = local_folder("s3://a/b", "run"), local_folder("s3://a/c", "run")
    assert one != two
    assert one.name == "run"


def test_push_copies_what_changed_and_removes_what_is_gone(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "sub").mkdir(parents=True)
    (here / "a").write_text("1")
    (here / "sub" / "b").write_text("2")
    (here / ".lock").write_text("")
    mirror = Mirror(f"file://{there}", here)
    mirror.push()
    assert sorted(p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()) == ["a", "sub/b"]
    (here / "a").unlink()
    (here / "sub" / "b").write_text("new")
    mirror.push()
    assert sorted(p.relative_to(there).as_posix() for p in there.rglob("*") if p.is_file()) == ["sub/b"]
    assert (there / "sub" / "b").read_text() == "new"


def test_a_run_in_a_uri_is_resumed_where_nothing_is_left(tiny: Tiny, tmp_path: Path) -> None:
    calm = tiny("byol-digits-sts", storage=tmp_path / "calm")
    run_recipe(calm)
    away = tmp_path / "bucket"
    pipeline = tiny("byol-digits-sts", storage=f"file://{away}")
    run_recipe(pipeline)
    remote = away / pipeline.run_name
    for name in ("config.yaml", "results.json", "teacher.safetensors", "report/report.html"):
        assert (remote / name).is_file(), name
    shutil.rmtree(pipeline.folder)  # another machine takes over
    shutil.rmtree(remote / "checkpoints" / "step-00000006")  # and the last checkpoint was never copied
    run_recipe(pipeline)
    expected = read_checkpoint(calm.folder / "checkpoints" / "step-00000006")["method"]
    found = read_checkpoint(remote / "checkpoints" / "step-00000006")["method"]
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_a_uri_that_nothing_opens_is_a_mistake_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a path or a URI"):
        Mirror("nonsense://x/y", tmp_path)
