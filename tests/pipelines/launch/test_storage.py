"""Runs whose storage is a URI: what is there after a run, and a resume on a machine that has nothing."""

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sts_core.files import is_uri
from sts_eval import read_results
from sts_methods.runs.checkpoint import read_checkpoint
from sts_pipelines.cli.verbs.evaluate import evaluate_folders
from sts_pipelines.cli.verbs.run import run_pipeline
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.storage_path import local_folder
from sts_pipelines.config.yaml_text import write_yaml
from sts_pipelines.errors import RunError, UsageError
from sts_pipelines.launch.job import Job
from sts_pipelines.launch.runtime import StorageCopy, build_runtime
from sts_pipelines.launch.storage import Mirror, mirror_of
from sts_pipelines.launch.worker import train_job
from tests import processes

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


def test_the_options_of_a_uri_stay_behind_the_path() -> None:
    uri = "s3://bucket/runs?region=here&scheme=http&endpoint_override=127.0.0.1:9"
    mirror = mirror_of(uri, local_folder(uri, "name"))
    assert mirror is not None
    assert mirror.root == "bucket/runs/name"


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


def test_the_folder_of_runs_in_a_uri_is_the_user_s_alone(tmp_path: Path) -> None:
    runs = local_folder("s3://a/b", "run").parents[1]
    assert (runs.name, runs.stat().st_mode & 0o777) == (f"sts-runs-{os.getuid()}", 0o700)
    runs.rmdir()
    (tmp_path / "elsewhere").mkdir()
    runs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="must be a folder of your own"):
        local_folder("s3://a/b", "run")


def test_a_run_finds_its_uri_on_a_machine_whose_temporary_folder_is_elsewhere() -> None:
    folder = local_folder("file:///bucket", "comparison")
    elsewhere = Path("/elsewhere", *folder.parts[-2:])
    for run, root in ((elsewhere, "/bucket/comparison"), (elsewhere / "tma", "/bucket/comparison/tma")):
        mirror = mirror_of("file:///bucket", run)
        assert mirror is not None
        assert mirror.root == root
    assert mirror_of("file:///bucket", Path("/moved/comparison")) is None


def test_pull_leaves_what_was_changed_here_since(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    for name in ("old", "changed"):
        (there / name).write_text("1")
    mirror = Mirror(f"file://{there}", here)
    mirror.pull()
    (here / "changed").write_text("2")
    (there / "old").write_text("3")
    Mirror(f"file://{there}", here).pull()
    assert {path.name: path.read_text() for path in here.iterdir()} == {"old": "3", "changed": "2"}


def test_a_run_in_a_uri_keeps_what_is_evaluated_and_configured_later(tiny: Tiny, tmp_path: Path) -> None:
    def with_knn(**changes: Any) -> PipelineConfig:
        pipeline = tiny("byol-digits-sts", storage=f"file://{tmp_path / 'bucket'}", steps=2, **changes)
        return replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))

    first, second = with_knn(), with_knn(keep_checkpoints=7)
    assert first.run_name == second.run_name
    remote = tmp_path / "bucket" / first.run_name
    run_pipeline(first)
    evaluate_folders([str(first.folder)], ["--evaluation.after-training", "linear"])
    run_pipeline(second)
    for folder in (remote, first.folder):
        assert {entry["evaluation"] for entry in read_results(folder).entries} == {"knn", "linear"}
        assert "keep_checkpoints: 7" in (folder / "config.yaml").read_text()


def test_a_run_in_a_uri_is_resumed_where_nothing_is_left(tiny: Tiny, tmp_path: Path) -> None:
    calm = tiny("byol-digits-sts", storage=tmp_path / "calm")
    run_pipeline(calm)
    away = tmp_path / "bucket"
    pipeline = tiny("byol-digits-sts", storage=f"file://{away}")
    run_pipeline(pipeline)
    remote = away / pipeline.run_name
    for name in ("config.yaml", "results.json", "teacher.safetensors", "report/report.html"):
        assert (remote / name).is_file(), name
    shutil.rmtree(pipeline.folder)  # another machine takes over
    shutil.rmtree(remote / "checkpoints" / "step-00000006")  # and the last checkpoint was never copied
    run_pipeline(pipeline)
    expected = read_checkpoint(calm.folder / "checkpoints" / "step-00000006")["method"]
    found = read_checkpoint(remote / "checkpoints" / "step-00000006")["method"]
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def train_on_two_machines(tmp_path: Path, config: Path) -> None:
    script = Path(__file__).parent / "one_of_two_machines.py"
    rendezvous = tmp_path / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    shared = [str(rendezvous), str(config), f"file://{tmp_path / 'bucket'}"]
    commands = [[sys.executable, str(script), str(rank), *shared, str(tmp_path / f"machine{rank}")] for rank in (0, 1)]
    machines = [processes.Process(command, stderr=processes.PIPE, text=True) for command in commands]
    said = processes.finish_all(machines)
    assert [machine.returncode for machine in machines] == [0, 0], said


@pytest.mark.slow
def test_machines_that_share_nothing_but_a_uri_resume_and_evaluate_together(tiny: Tiny, tmp_path: Path) -> None:
    config = tmp_path / "two.yaml"
    config.write_text(write_yaml(plain_of(tiny("fixmatch-digits-sts", num_workers=2, steps=4))))
    train_on_two_machines(tmp_path, config)
    newest = Path("checkpoints") / "step-00000004"
    assert (tmp_path / "bucket" / "results.json").is_file()
    assert (tmp_path / "machine1" / newest).is_dir()  # evaluated there as well
    shutil.rmtree(tmp_path / "machine1")  # replaced by another machine
    shutil.rmtree(tmp_path / "bucket" / newest)  # which the bucket never got
    (tmp_path / "bucket" / "results.json").unlink()
    train_on_two_machines(tmp_path, config)
    expected, found = (read_checkpoint(tmp_path / place / newest)["method"] for place in ("machine0", "machine1"))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert (tmp_path / "bucket" / "results.json").is_file()


def test_what_an_evaluation_leaves_is_in_the_uri_before_it_ends(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    checkpoint = Path("voc-teacher-1a2b3c4d") / "checkpoints" / "iteration-00001000.pt"
    storage = StorageCopy(Mirror(f"file://{there}", here))
    with storage.kept(every_seconds=0.01):
        (here / checkpoint).parent.mkdir(parents=True)
        (here / checkpoint).write_text("weights")
        deadline = time.monotonic() + 60
        while not (there / checkpoint).is_file() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (there / checkpoint).is_file()
        (here / "results.json").write_text("{}")
    assert (there / "results.json").is_file()


def test_storage_that_fails_in_training_is_a_warning_and_at_the_end_one_line(tiny: Tiny, tmp_path: Path) -> None:
    pipeline = tiny("byol-digits-sts", steps=4)
    (tmp_path / "bucket").touch()  # a file: nothing can be copied into it
    job = Job(label="x", pipeline=pipeline, folder=tmp_path / "run")
    job.folder.mkdir()
    (job.folder / "file").touch()
    storage = StorageCopy(Mirror(f"file://{tmp_path / 'bucket'}", job.folder))
    with pytest.warns(UserWarning, match="cannot copy the run to"):
        storage._push_when(lambda: None)
    with pytest.raises(RunError, match="rerun the same command to resume"):
        train_job(job, build_runtime(job, storage), storage)


def test_a_uri_that_nothing_opens_is_a_mistake_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a path or a URI"):
        Mirror("nonsense://x/y", tmp_path)
