"""Runs and sweeps in an object store: a server of S3's protocol on loopback, and machines that start with nothing."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from sts_eval import read_results
from sts_pipelines.cli.main import main
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.launch.storage import Mirror
from sts_pipelines.sweep.outcomes import forget_errors, has_failed, note_error
from sts_pipelines.sweep.run import run_sweep, sweep_folder

pytestmark = [
    pytest.mark.slow,
    # The server's own libraries, and the sockets that it leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]
Tiny = Callable[..., PipelineConfig]
BUCKET, FEW = "lab", "few-labels/teacher/top1"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """HOST:PORT of an object store with an empty bucket."""
    moto = pytest.importorskip("moto.server")
    store = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    yield f"{host}:{port}"
    store.stop()


@pytest.fixture
def bucket(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fs.FileSystem:
    """The bucket, which commands of this test find by what is in the environment."""
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "y", "ENDPOINT_URL": f"http://{server}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    files = fs.S3FileSystem(endpoint_override=server, scheme="http", region="us-east-1", allow_bucket_creation=True)
    files.create_dir(BUCKET)
    files.delete_dir_contents(BUCKET)
    return files


def found_in(bucket: fs.FileSystem) -> list[str]:
    """The objects in the bucket."""
    infos = bucket.get_file_info(fs.FileSelector(BUCKET, recursive=True))
    return sorted(info.path.removeprefix(f"{BUCKET}/") for info in infos if info.type == fs.FileType.File)


def forget(tmp_path: Path) -> None:
    """What a machine would have that takes over."""
    shutil.rmtree(tmp_path / "scratch")
    (tmp_path / "scratch").mkdir()


def sweep(tiny: Tiny, storage: str, **grid: Any) -> SweepConfig:
    pipeline = tiny("byol-digits-sts", storage=storage, steps=2)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    return SweepConfig(pipeline=pipeline, sweep=GridConfig(momenta=(0.9,), **grid))


def test_a_sweep_in_an_object_store_is_continued_by_a_machine_that_has_nothing(
    bucket: fs.FileSystem, server: str, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = f"s3://{BUCKET}/sweeps?scheme=http&endpoint_override={server}"
    first = run_sweep(sweep(tiny, storage, preserve_probabilities=(0.0, 0.5)))
    name = sweep_folder(sweep(tiny, storage)).name
    there = found_in(bucket)
    assert {f"sweeps/{name}/{file}" for file in ("sweep.csv", "report/report.html")} <= set(there)
    for cell in ("m0.9-p0", "m0.9-p0.5"):
        files = ("finished.json", "results.json", "teacher.safetensors", "checkpoints/step-00000002/state.pt")
        assert {f"sweeps/{name}/{cell}/{file}" for file in files} <= set(there)
    trained = bucket.get_file_info(f"{BUCKET}/sweeps/{name}/m0.9-p0/metrics.jsonl").mtime_ns
    forget(tmp_path)
    capsys.readouterr()
    found = run_sweep(sweep(tiny, storage, preserve_probabilities=(0.0, 0.5), with_control=True))
    assert "3 trials, 2 finished before" in capsys.readouterr().out
    assert [outcome.value for outcome in found[:2]] == [outcome.value for outcome in first]
    assert bucket.get_file_info(f"{BUCKET}/sweeps/{name}/m0.9-p0/metrics.jsonl").mtime_ns == trained
    assert f"sweeps/{name}/m0.95-p0/finished.json" in found_in(bucket)
    here = sweep_folder(sweep(tiny, storage))
    assert not (here / "m0.9-p0" / "teacher.safetensors").exists()  # nobody needed it


def test_a_trial_that_failed_on_one_machine_has_not_failed_once_another_has_started_it_again(
    bucket: fs.FileSystem, tmp_path: Path
) -> None:
    uri = f"s3://{BUCKET}/trial"
    one, other = (Mirror(uri, tmp_path / name) for name in ("one", "other"))
    note_error(one.folder, "the disk is full")
    earlier = time.time() - 60
    os.utime(one.folder / "error.json", (earlier, earlier))  # S3's clock only has seconds
    one.push()
    other.pull()
    assert has_failed(other.folder)
    forget_errors([other.folder])
    other.push()
    Mirror(uri, one.folder).pull()  # of the next command
    assert not has_failed(one.folder)


def test_the_teachers_of_one_student_are_in_the_object_store(bucket: fs.FileSystem, tiny: Tiny, tmp_path: Path) -> None:
    pipeline = tiny("fixmatch-digits-sts", storage=f"s3://{BUCKET}/banks", steps=2)
    grid = GridConfig(momenta=(0.9,), preserve_probabilities=(0.0, 0.5), one_student=True, metric=FEW)
    recipe = SweepConfig(pipeline=pipeline, sweep=grid)
    first = run_sweep(recipe)
    forget(tmp_path)
    again = run_sweep(recipe)
    assert [outcome.value for outcome in again] == [outcome.value for outcome in first]
    there = found_in(bucket)
    for cell in ("m0.9-p0", "m0.9-p0.5"):
        assert any(path.endswith(f"/{cell}/results.json") for path in there)


def test_report_evaluate_doctor_and_export_take_the_uri_of_a_run(
    bucket: fs.FileSystem, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sts_pipelines.cli.verbs.run import run_pipeline

    pipeline = tiny("byol-digits-sts", storage=f"s3://{BUCKET}/runs", steps=2)
    run_pipeline(replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",))))
    forget(tmp_path)
    uri = f"s3://{BUCKET}/runs/{pipeline.run_name}"
    assert main(["evaluate", uri, "--only", "linear"]) == 0
    forget(tmp_path)
    assert main(["report", uri]) == 0
    here = pipeline.folder
    assert {entry["evaluation"] for entry in read_results(here).entries} == {"knn", "linear"}
    assert not (here / "teacher.safetensors").exists()  # a report reads no tensors
    assert f"runs/{pipeline.run_name}/report/report.html" in found_in(bucket)
    assert main(["export", uri, "--to", "timm", "--output", str(tmp_path / "timm.safetensors")]) == 0
    capsys.readouterr()
    assert main(["doctor", uri]) == 0
    assert "checkpoint at step 2: intact" in capsys.readouterr().out
    assert main(["doctor", f"s3://{BUCKET}/runs/nothing"]) == 2
    assert "must hold a run, but nothing is there" in capsys.readouterr().err
