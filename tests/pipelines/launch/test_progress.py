"""What the driver shows of runs in other processes."""

import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sts_eval import add_entries
from sts_methods import build_method
from sts_methods.runs.runtime import RunPlan
from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.evaluation.stage import stage
from sts_pipelines.launch import progress
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import Job
from sts_pipelines.launch.progress import (
    Watcher,
    is_planned,
    note_seconds_left,
    seconds_left,
    tell_seconds_left,
    write_plan,
)
from sts_pipelines.launch.runtime import PlanNote
from sts_pipelines.launch.stages import StageTeller
from sts_pipelines.sweep.progress import TrialWatcher
from sts_pipelines.sweep.trials import trials_of

Tiny = Callable[..., PipelineConfig]


def plan(first_step: int = 0) -> RunPlan:
    return RunPlan(
        config={}, first_step=first_step, total_steps=4, steps_per_epoch=2, images_per_step=8, keep_checkpoints=1
    )


def log(folder: Path, *steps: int) -> None:
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "loss": 0.5, "images_per_second": 80.0}) + "\n")


def test_the_watcher_shows_steps_rate_time_left_and_loss(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        write_plan(tmp_path, plan(), label="sts")
        log(tmp_path, 1, 2, 3, 4)
    text = stream.getvalue()
    assert "sts: 4 steps of 8 images" in text
    assert "step 4/4 (100%)  80 images/s  0:00 left  loss 0.5" in text


def test_the_watcher_says_where_restarted_workers_go_on(tmp_path: Path) -> None:
    stream = io.StringIO()
    write_plan(tmp_path, plan(first_step=2), label="sts")
    log(tmp_path, 1, 2, 3)
    (tmp_path / "metrics.jsonl").open("a").close()
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        pass
    assert "from step 2" in stream.getvalue()


def test_the_watcher_leaves_a_run_that_failed_for_the_next_one(tmp_path: Path) -> None:
    stream = io.StringIO()
    failed, next_one = tmp_path / "a", tmp_path / "b"
    for folder in (failed, next_one):
        folder.mkdir()
    with Watcher([failed, next_one], stream=stream, every_seconds=0.01):
        write_plan(failed, plan(), label="none")
        log(failed, 1)
        wait_for("none:", stream)
        write_plan(next_one, plan(), label="sts")
        wait_for("sts:", stream)
    assert "sts: 4 steps of 8 images" in stream.getvalue()


def wait_for(text: str, stream: io.StringIO, *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while text not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert text in stream.getvalue()


def test_the_watcher_tells_the_estimate_of_the_workers_once_and_not_as_a_restart(tmp_path: Path) -> None:
    stream, later = io.StringIO(), tmp_path / "later"
    with Watcher([tmp_path, later], stream=stream, every_seconds=0.01):
        write_plan(tmp_path, plan(), label="sts")
        wait_for("sts: 4 steps", stream)
        note_seconds_left(tmp_path, {"training": 36_000.0, "evaluation": 7200.0})
        log(tmp_path, 1, 2)
        wait_for("to go", stream)
        log(tmp_path, 3, 4)
        wait_for("step 4/4", stream)
    text = stream.getvalue()
    assert "sts: about 12 hours to go, 2 hours of it evaluation; 24 hours with the 1 after it\n" in text
    assert text.count("to go") == text.count("4 steps of 8 images") == 1


def test_a_restart_is_told_even_if_its_note_has_an_estimate_when_it_is_read(tmp_path: Path) -> None:
    stream, again = io.StringIO(), tmp_path / "again"
    again.mkdir()
    write_plan(again, plan(first_step=1), label="sts")
    note_seconds_left(again, {"training": 40.0, "evaluation": 0.0})
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        write_plan(tmp_path, plan(), label="sts")
        log(tmp_path, 1, 2, 3)
        wait_for("step 1/4", stream)
        (again / "plan.json").replace(tmp_path / "plan.json")
        wait_for("sts: about 40 seconds to go\n", stream)
    text = stream.getvalue()
    assert text.count("sts: 4 steps of 8 images from step 1\n") == text.count("to go") == 1
    assert "step 2/4" in text[text.index("from step 1") :], "steps that are repeated are shown"


def test_an_estimate_that_is_already_there_is_told(tmp_path: Path) -> None:
    stream = io.StringIO()
    write_plan(tmp_path, plan(), label="sts")
    note_seconds_left(tmp_path, {"training": 40.0, "evaluation": 0.0})
    log(tmp_path, 1, 2)
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        pass
    assert stream.getvalue().count("sts: about 40 seconds to go\n") == 1


def test_a_run_notes_after_the_first_steps_how_long_the_rest_will_take(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = tiny("byol-digits-sts", steps=4)
    pipeline = replace(
        pipeline,
        training=replace(pipeline.training, log_every_steps=1),
        evaluation=replace(pipeline.evaluation, after_training=("knn",)),
    )
    job = Job(label="sts", pipeline=pipeline, folder=pipeline.folder)
    method = build_method(pipeline.training.method, seed=0)
    modes = [module.training for module in method.modules()]
    told: list[str] = []
    note = PlanNote(job, say=told.append)
    job.folder.mkdir(parents=True)
    note.start(plan(), method)
    for step in (1, 2, 3):
        note.report({"step": step, "images_per_second": 0.5}, None)
        assert (seconds_left(job.folder) is None) == (step < 2)
    left = seconds_left(job.folder)
    assert left is not None
    assert left["training"] == 2 * 8 / 0.5, "two steps of 8 images"
    assert left["evaluation"] > 0
    assert told == [tell_seconds_left("sts", left)]
    assert [module.training for module in method.modules()] == modes
    assert left == seconds_left(job.folder, since=0.0)
    assert seconds_left(job.folder, since=time.time() + 60) is None


def test_a_sweep_sums_the_hours_of_its_trials(tmp_path: Path) -> None:
    recipe = CATALOG["byol-imagenet-p-by-m"].build()
    assert isinstance(recipe, SweepConfig)
    trials = trials_of(recipe)
    stream = io.StringIO()
    with TrialWatcher(tmp_path, trials, metric="knn/teacher/top1", stream=stream, every_seconds=0.01):
        for trial in trials[:2]:
            (tmp_path / trial.name).mkdir()
            write_plan(tmp_path / trial.name, plan(), label=trial.name)
        note_seconds_left(tmp_path / trials[0].name, {"training": 100_000.0, "evaluation": 8_000.0})
        wait_for("in all", stream)
    assert "32 trials take about 20 days in all, 2 at a time\n" in stream.getvalue(), "16 times 30 hours"
    assert stream.getvalue().count("in all") == 1


def test_a_clock_of_files_that_is_a_little_behind_hides_no_run(tmp_path: Path) -> None:
    write_plan(tmp_path, plan(), label="sts")
    note_seconds_left(tmp_path, {"training": 1.0, "evaluation": 0.0})
    os.utime(tmp_path / "plan.json", (0, 99.5))
    assert is_planned(tmp_path, since=100.0)
    assert seconds_left(tmp_path, since=100.0) is not None
    assert not is_planned(tmp_path, since=101.0)


def test_a_note_of_an_earlier_launch_is_not_shown(tmp_path: Path) -> None:
    write_plan(tmp_path, plan(), label="old")
    os.utime(tmp_path / "plan.json", (0, 0))
    stream = io.StringIO()
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        pass
    assert stream.getvalue() == ""


def test_a_sweep_tells_of_every_trial_once(tmp_path: Path) -> None:
    recipe = CATALOG["byol-digits-p-by-m"].build()
    assert isinstance(recipe, SweepConfig)
    cells = trials_of(replace(recipe, sweep=replace(recipe.sweep, momenta=(0.9,), preserve_probabilities=(0.0, 0.5))))
    stream = io.StringIO()
    with TrialWatcher(tmp_path, cells, metric="knn/teacher/top1", stream=stream, every_seconds=0.01):
        (tmp_path / "m0.9-p0.5").mkdir()
        entry = {"evaluation": "knn", "network": "teacher", "metric": "top1", "value": 91.25, "which": "last"}
        add_entries(tmp_path / "m0.9-p0.5", [entry])
    assert stream.getvalue().startswith("trial 1/2  m0.9-p0.5: 91.2")
    assert stream.getvalue().count("trial") == 1


def test_unlabelled_images_count_as_they_do_in_the_rate(tiny: Tiny) -> None:
    pipeline = tiny("fixmatch-digits-sts", steps=1)
    plain = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=()))
    launch([Job(label="x", pipeline=plain, folder=plain.folder)], name="x", folder=plain.folder)
    training = plain.training
    shown = json.loads((plain.folder / "plan.json").read_text())["images_per_step"]
    assert shown == training.global_batch_size * (1 + training.data.unlabelled_ratio)


def test_a_sweep_says_how_far_its_trials_are(tmp_path: Path) -> None:
    recipe = CATALOG["byol-digits-p-by-m"].build()
    assert isinstance(recipe, SweepConfig)
    trials = trials_of(replace(recipe, sweep=replace(recipe.sweep, momenta=(0.9,), preserve_probabilities=(0.0, 0.5))))
    stream = io.StringIO()
    options: dict[str, Any] = {"stream": stream, "every_seconds": 0.01, "again_seconds": 0.05}
    with TrialWatcher(tmp_path, trials, metric="knn/teacher/top1", **options):
        wait_for("waiting for workers", stream)
        for name in ("m0.9-p0", "m0.9-p0.5"):
            (tmp_path / name).mkdir()
            write_plan(tmp_path / name, plan(), label=name)
        log(tmp_path / "m0.9-p0", 3)
        with stage(tmp_path / "m0.9-p0.5", "knn of the teacher"):
            wait_for("under way: m0.9-p0 step 3/4, m0.9-p0.5 knn of the teacher\n", stream)


def test_workers_that_are_waited_for_are_spoken_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_SECONDS_TO_START", 0.05)
    monkeypatch.setattr(progress, "_SECONDS_FOR_A_STEP", 0.05)
    stream = io.StringIO()
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        wait_for("waiting for the workers to start, 0:00 so far", stream)
        write_plan(tmp_path, plan(), label="sts")
        log(tmp_path, 1)
        wait_for("no step for 0:00; lost workers are started again", stream)
    told = stream.getvalue()
    assert told.index("waiting for the workers") < told.index("no step for")


ERASED = "\r\x1b[K"  # a bar may still stand in the line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_evaluated_stays_on_one_line_of_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sts_pipelines.launch.stages.columns_of", lambda stream: 39)
    stream, teller = Terminal(), {"byol-imagenet-200ep-sts": tmp_path}
    with StageTeller(teller, stream=stream, every_seconds=0.01), stage(tmp_path, "imagenet-c of the teacher"):
        wait_for(f"{ERASED}byol-imagenet-200ep-sts: evaluating ima", stream)
    assert max(len(line) for line in stream.getvalue().replace(ERASED, "\n").splitlines()) == 39


def test_an_evaluation_says_what_it_is_at(tmp_path: Path) -> None:
    for stream, end in ((io.StringIO(), "\n"), (Terminal(), "")):
        with StageTeller({"sts": tmp_path}, stream=stream, every_seconds=0.01, again_seconds=0.1):
            with stage(tmp_path, "linear of the teacher"):
                wait_for("sts: evaluating linear of the teacher" + end, stream)
                wait_for("sts: evaluating linear of the teacher, 0:0", stream)
            with stage(tmp_path, "linear of the student"):
                wait_for("\nsts: evaluating linear of the student" if end else f"\n{ERASED}sts: ", stream)
        assert stream.getvalue().endswith("\n")
    assert not list(tmp_path.iterdir())


def test_what_others_say_begins_on_a_line_of_its_own(tmp_path: Path) -> None:
    """The teller learns a little late that a stage is over, and a warning does not wait for that."""
    stream = Terminal()
    with (
        StageTeller({"none": tmp_path}, stream=stream, every_seconds=0.01) as teller,
        stage(tmp_path, "knn of the student"),
    ):
        wait_for(f"{ERASED}none: evaluating knn of the student", stream)
        with Watcher([tmp_path], stream=stream, say=teller.say, every_seconds=0.01):
            write_plan(tmp_path, plan(), label="tma")
            wait_for("tma: 4 steps", stream)
    assert "\ntma: 4 steps of 8 images\n" in stream.getvalue()
