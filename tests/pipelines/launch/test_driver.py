"""Running pipelines in process: training, evaluation, resume, and every way in which a run folder can be wrong."""

import contextlib
import json
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sts_core import ConfigError
from sts_core.errors import StateError
from sts_eval import read_results
from sts_methods.runs.checkpoint import CheckpointStore, read_checkpoint
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.cli.verbs.run import run_pipeline
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.run_folder import read_run
from sts_pipelines.diagnostics.doctor import examine
from sts_pipelines.errors import RunError, UsageError, memory_told
from sts_pipelines.launch import driver, worker
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job, is_complete, jobs_of, run_lock
from sts_pipelines.launch.worker import train_job
from tests import processes
from tests.pipelines.conftest import run

Tiny = Callable[..., PipelineConfig]


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = read_checkpoint(folder / "checkpoints" / f"step-{step:08d}")["method"]
    return state


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> PipelineConfig:
    """A pipeline whose run is there to be copied and damaged."""
    flags = ["--steps", "1", "--epochs", "none", "--cluster.num-workers", "0", "--evaluation.after-training", "knn"]
    pipeline = resolve("byol-digits-tma", [*flags, "--cluster.storage-path", str(tmp_path_factory.mktemp("runs"))])
    assert isinstance(pipeline, PipelineConfig)
    run(pipeline)
    return pipeline


@pytest.mark.slow
def test_a_run_leaves_config_metrics_networks_and_results(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = tiny("byol-digits-sts")
    run_pipeline(pipeline)
    folder = pipeline.folder
    for name in ("config.yaml", "metrics.jsonl", "teacher.safetensors", "student.safetensors", "report/report.html"):
        assert (folder / name).is_file(), name
    entries = read_results(folder).entries
    assert {(e["evaluation"], e["network"]) for e in entries} == {
        (evaluation, network) for evaluation in ("linear", "knn") for network in ("teacher", "student")
    }
    assert "linear teacher" in capsys.readouterr().out


@pytest.mark.slow
def test_the_config_of_a_run_folder_runs_again(tiny: Tiny, tmp_path: Path) -> None:
    from sts_pipelines.cli.resolve import resolve

    pipeline = tiny("moco-digits-tma", steps=2)
    folder = run(pipeline)
    assert resolve(str(folder / "config.yaml")) == pipeline


@pytest.mark.slow
def test_a_finished_run_returns_at_once_and_evaluates_nothing_twice(tiny: Tiny) -> None:
    pipeline = tiny("fixmatch-digits-sts", steps=4)
    folder = run(pipeline)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("state.pt")}
    results = (folder / "results.json").stat().st_mtime_ns
    run(pipeline)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("state.pt")} == before
    assert (folder / "results.json").stat().st_mtime_ns == results


@pytest.mark.slow
def test_a_comparison_trains_each_variant_in_a_folder_of_its_own(tiny: Tiny) -> None:
    base = tiny("byol-digits-sts", steps=2)
    variants = {name: replace(base.training.smoothing, momentum=m) for name, m in (("slow", 0.9), ("fast", 0.1))}
    recipe = ComparisonConfig(pipeline=base, variants=variants)
    launch(jobs_of(recipe), name=recipe.run_name, folder=recipe.folder)
    for name, smoothing in variants.items():
        assert read_run(recipe.folder / name).training.smoothing.momentum == smoothing.momentum
        assert not (recipe.folder / name / "config.json").exists()  # a run has one config
        assert (recipe.folder / name / "results.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_variant_that_fails_leaves_the_others_and_is_named_at_the_end(
    num_workers: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny("byol-digits-sts", num_workers=num_workers, steps=2)
    variants = {name: replace(base.training.smoothing, momentum=m) for name, m in (("none", 0.0), ("a", 0.1), ("b", 1))}
    recipe = ComparisonConfig(pipeline=base, variants=variants)
    groups: list[str] = []

    def one_group(jobs: Sequence[Job], **options: object) -> None:
        groups.append("+".join(job.label for job in jobs))
        driver._train_in_process(jobs, say=lambda text: None)

    def diverging(job: Job, *rest: Any) -> None:
        if job.label == "none":
            raise StateError("the loss is not finite")
        train_job(job, *rest)

    monkeypatch.setattr(driver, "ray_cluster", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(driver, "train_on_ray", one_group)
    monkeypatch.setattr(worker, "train_job", diverging)
    with pytest.raises(RunError, match=r"1 of 3 runs failed: none \(the loss is not finite\); the same command tries"):
        run_pipeline(recipe)
    assert groups == ([] if num_workers == 0 else ["none+a+b", "none", "a", "b"])
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows if row.startswith(("none", "a ", "b "))] == ["a", "b"]


@pytest.mark.parametrize("names", [(), ("report",)])
def test_a_comparison_needs_teachers_with_folders_of_their_own(tiny: Tiny, names: tuple[str, ...]) -> None:
    pipeline = tiny("byol-digits-tma")
    with pytest.raises(ConfigError, match="variant"):
        ComparisonConfig(pipeline=pipeline, variants=dict.fromkeys(names, pipeline.training.smoothing))


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_costs_steps_and_not_the_run(tiny: Tiny) -> None:
    pipeline = tiny("moco-digits-sts")
    folder = run(pipeline)
    expected = weights(folder, 6)
    *_, earlier, newest = CheckpointStore(folder / "checkpoints").steps()  # a slow disk leaves some out
    assert newest == 6
    state = folder / "checkpoints" / "step-00000006" / "state.pt"
    state.write_bytes(state.read_bytes()[:-100])
    text, healthy = examine(str(folder))
    assert healthy
    assert f"the newest checkpoint is damaged: it would resume from step {earlier}" in text
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint"):
        run(pipeline)
    assert same_bits(weights(folder, 6), expected)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_the_earlier_checkpoints(tiny: Tiny, tmp_path: Path) -> None:
    pipeline = tiny("byol-digits-sts", steps=8)
    reference = run(tiny("byol-digits-sts", steps=8, storage=tmp_path / "reference"))
    flags = ["--steps", "8", "--checkpoint-every-steps", "2", "--log-every-steps", "1"]
    flags += ["--cluster.num-workers", "0", "--cluster.storage-path", str(tmp_path), "--cluster.use-gpu", "false"]

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [sys.executable, "-m", "sts_pipelines", "run", "byol-digits-sts", *flags]
    finished = processes.run(command, preexec_fn=small_files)
    assert finished.returncode == 2
    last = finished.stderr.strip().splitlines()[-1]
    assert last.startswith("sts: cannot write checkpoint")
    assert "free some space" in last
    assert main(command[3:]) == 0
    (folder,) = (path for path in tmp_path.iterdir() if path.name.startswith("byol-digits-sts"))
    assert folder.name == pipeline.run_name
    assert same_bits(weights(folder, 8), weights(reference, 8))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    flags = ["--cluster.num-workers", "0", "--cluster.storage-path", str(tmp_path / "file")]
    assert main(["run", "byol-digits-sts", *flags]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sts: cannot write to ")
    assert error.count("\n") == 1


def test_a_job_that_another_group_of_workers_writes_is_left_alone(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:

    base = tiny("byol-digits-sts", steps=2)
    variants = {name: replace(base.training.smoothing, momentum=m) for name, m in (("one", 0.9), ("two", 0.1))}
    recipe = ComparisonConfig(pipeline=base, variants=variants)
    monkeypatch.setattr(worker, "run_lock", lambda folder: run_lock(folder, patience_seconds=0.3))
    with run_lock(recipe.folder / "two"), pytest.raises(RunError, match="two is being written to by another run"):
        launch(jobs_of(recipe), name=recipe.run_name, folder=recipe.folder)
    assert not (recipe.folder / "two" / "checkpoints").exists()


def test_two_writers_of_one_folder_are_kept_apart(tmp_path: Path) -> None:
    with run_lock(tmp_path), pytest.raises(UsageError, match="another run"), run_lock(tmp_path, patience_seconds=0.3):
        pass
    with run_lock(tmp_path, patience_seconds=0.3):
        assert (tmp_path / ".lock").is_file()


def test_a_finished_run_starts_no_cluster_and_one_that_lacks_a_result_does(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = tiny("byol-digits-tma", steps=2)
    folder = run(pipeline)
    started: list[float] = []

    @contextlib.contextmanager
    def no_cluster(cluster: object, *, num_cpus: float) -> Iterator[None]:
        started.append(num_cpus)
        yield

    monkeypatch.setattr(driver, "ray_cluster", no_cluster)
    monkeypatch.setattr(driver, "train_on_ray", lambda jobs, **options: None)
    on_ray = replace(pipeline, cluster=replace(pipeline.cluster, num_workers=2))
    assert run(on_ray) == folder
    assert started == []
    (folder / "results.json").unlink()
    run(on_ray)
    assert started == [2.0]


@pytest.mark.parametrize("name", ["teacher.json", "teacher.safetensors", "student.safetensors"])
@pytest.mark.parametrize("is_torn", [True, False])
def test_a_damaged_network_of_a_finished_run_is_saved_again_from_the_checkpoint(
    name: str, is_torn: bool, finished: PipelineConfig, tmp_path: Path
) -> None:
    pipeline = replace(finished, cluster=replace(finished.cluster, storage_path=str(tmp_path), num_workers=2))
    file = Path(shutil.copytree(finished.folder, pipeline.folder)) / name
    before = file.read_bytes()
    (job,) = jobs_of(pipeline)
    assert is_complete(job)
    file.write_bytes(before[:100]) if is_torn else file.unlink()
    assert not is_complete(job)
    with pytest.warns(UserWarning, match=f"the {file.stem} saved in .* is damaged"):
        run(replace(pipeline, cluster=replace(pipeline.cluster, num_workers=0)))
    assert file.read_bytes() == before
    assert is_complete(job)


def test_a_torn_results_file_steps_aside_and_is_made_again(
    finished: PipelineConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    before = read_results(folder)
    torn = (folder / "results.json").read_text()[:60]
    (folder / "results.json").write_text(torn)
    with pytest.warns(UserWarning, match="it is now results.damaged.json"):
        assert main(["evaluate", str(folder)]) == 0
    assert (folder / "results.damaged.json").read_text() == torn
    assert [entry["value"] for entry in read_results(folder).entries] == [entry["value"] for entry in before.entries]


def _arrays(path: Path, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (80, 12, 12, 3), dtype=np.uint8)
    labels = np.arange(40) % 4
    np.savez(path, x_train=noise[:40], y_train=labels, x_test=noise[40:], y_test=labels)


@pytest.mark.parametrize("replaced", [True, False])
def test_other_images_than_a_run_was_trained_on_are_refused_before_anything_is_said_or_written(
    replaced: bool, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first.npz", tmp_path / ("first.npz" if replaced else "second.npz")
    _arrays(first, 0)
    pipeline = tiny("byol-digits-sts", steps=1, global_batch_size=8)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=()))

    def on(root: Path) -> PipelineConfig:
        data = replace(pipeline.training.data, dataset="arrays", root=str(root))
        return replace(pipeline, training=replace(pipeline.training, data=data))

    folder = run(on(first))
    run_pipeline(on(first))
    capsys.readouterr()
    _arrays(second, 1)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
    with pytest.raises(UsageError, match="was trained on other images"):
        run_pipeline(on(second))
    assert capsys.readouterr().out == ""
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == before


def test_results_of_other_images_than_are_at_the_same_place_now_are_shown_by_no_command(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "images.npz"
    _arrays(file, 0)
    pipeline = tiny("byol-digits-sts", steps=1, global_batch_size=8)
    data = replace(pipeline.training.data, dataset="arrays", root=str(file))
    knn = replace(pipeline.evaluation.knn, ks=(1,))
    pipeline = replace(
        pipeline,
        training=replace(pipeline.training, data=data),
        evaluation=replace(pipeline.evaluation, after_training=("knn",), knn=knn),
    )
    run_pipeline(pipeline)
    capsys.readouterr()
    with np.load(file) as arrays:
        np.savez(file, **{**arrays, "x_test": 255 - arrays["x_test"]})  # the training's are as they were
    with pytest.raises(UsageError, match=r"was evaluated on other images \(40 images.* restore the dataset, or remove"):
        run_pipeline(pipeline)
    assert main(["evaluate", str(pipeline.folder)]) == 2
    assert capsys.readouterr().out == ""
    (pipeline.folder / "results.json").unlink()
    assert main(["evaluate", str(pipeline.folder)]) == 0
    file.unlink()
    assert main(["evaluate", str(pipeline.folder)]) == 0


@pytest.mark.parametrize(("storage", "said"), [("file", "Not a directory"), ("nonsense://place", "URI that pyarrow")])
def test_a_place_that_holds_no_runs_is_told_before_ray_starts(
    storage: str, said: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(driver, "ray_cluster", lambda *arguments, **options: pytest.fail("Ray was started"))
    pipeline = tiny("byol-digits-sts", num_workers=2)
    with pytest.raises(UsageError, match=said):
        run_pipeline(replace(pipeline, cluster=replace(pipeline.cluster, storage_path=storage)))


def test_export_writes_a_backbone_that_another_library_reads(tiny: Tiny, tmp_path: Path) -> None:
    pipeline = tiny("byol-digits-tma", steps=1)
    method = replace(pipeline.training.method, backbone="resnet10t", stem="imagenet")
    pipeline = replace(pipeline, training=replace(pipeline.training, method=method))
    folder = run(pipeline)
    output = tmp_path / "teacher-for-timm.safetensors"
    assert main(["export", str(folder), "--to", "timm", "--output", str(output)]) == 0
    assert output.is_file()


def test_the_doctor_tells_what_a_run_is(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tiny("fixmatch-digits-sts", steps=4))
    assert main(["doctor", str(folder)]) == 0
    text = capsys.readouterr().out
    for part in ("method: fixmatch", "step: 4", "m=0.95, p=0.5", "buffers: copy", "intact", "label split: "):
        assert part in text, part
    assert main(["doctor", str(folder / "checkpoints" / "step-00000004")]) == 0
    assert main(["doctor", str(folder / "teacher.safetensors")]) == 0
    (folder / "teacher.safetensors").write_bytes(b"torn")
    assert main(["doctor", str(folder / "teacher.safetensors")]) == 1
    for state in folder.rglob("state.pt"):
        state.write_bytes(b"torn")
    assert main(["doctor", str(folder)]) == 1
    assert "NOT RESUMABLE" in capsys.readouterr().out


def test_jobs_cross_to_workers_as_plain_values(tiny: Tiny, tmp_path: Path) -> None:
    job = Job(label="x", pipeline=tiny("byol-digits-sts"), folder=tmp_path, bank_folder=tmp_path / "bank")
    assert Job.from_plain(json.loads(json.dumps(job.to_plain()))) == job


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_memory_that_ran_out_is_a_sentence(error: Exception) -> None:
    with pytest.raises(RunError, match=r"^memory ran out \(.*\): lower data.image-size"), memory_told():
        raise error
    with pytest.raises(RuntimeError, match=r"^another$"), memory_told():
        raise RuntimeError("another")


def test_the_choice_to_do_without_ray_is_told(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = tiny("byol-digits-sts", steps=1)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=()))
    launch([Job(label="x", pipeline=pipeline, folder=pipeline.folder)], name="x", folder=pipeline.folder)
    assert re.match(r"x: training in this process on \d+ CPU threads?, without Ray\n", capsys.readouterr().err)
