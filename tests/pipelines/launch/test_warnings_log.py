"""Warnings of workers reach the user: at once, once, and stay in the run folder."""

import io
import json
import logging
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of
from sts_pipelines.launch.progress import Watcher
from sts_pipelines.launch.warnings_log import warnings_noted
from sts_pipelines.sweep.progress import TrialWatcher
from sts_pipelines.sweep.trials import trials_of

Tiny = Callable[..., PipelineConfig]


class _Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def flush(self) -> None:
        self.written.set()


def warn(folder: Path, message: str) -> None:
    with pytest.warns(UserWarning, match=message), warnings_noted(folder):
        warnings.warn(message, UserWarning, stacklevel=1)


def test_the_watcher_tells_each_new_warning_once_and_at_once(tmp_path: Path) -> None:
    stream = _Terminal()
    warn(tmp_path, "from an earlier launch")
    with Watcher([tmp_path], stream=stream, every_seconds=0.01):
        for _ in range(2):  # as two ranks would
            warn(tmp_path, "the disk is full")
        assert stream.written.wait(60)
        warn(tmp_path, "the last word")
    assert stream.getvalue() == "warning: the disk is full\nwarning: the last word\n"


def test_a_sweep_tells_the_warnings_of_its_trials(tmp_path: Path) -> None:
    config = CATALOG["byol-digits-p-by-m"].build()
    assert isinstance(config, SweepConfig)
    trials, stream = trials_of(config)[:2], io.StringIO()
    (tmp_path / trials[1].name).mkdir()
    with TrialWatcher(tmp_path, trials, metric="knn/teacher/top1", stream=stream, every_seconds=0.01):
        warn(tmp_path / trials[1].name, "the disk is full")
    assert stream.getvalue() == "warning: the disk is full\n"


def _collapsing(tiny: Tiny, *, num_workers: int) -> PipelineConfig:
    pipeline = tiny("byol-digits-sts", num_workers=num_workers, steps=2, collapse_feature_std=100.0, on_collapse="warn")
    return replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=()))


def test_a_warning_of_a_run_stays_in_its_folder(tiny: Tiny) -> None:
    pipeline = _collapsing(tiny, num_workers=0)
    with pytest.warns(UserWarning, match="features have collapsed"):
        launch(jobs_of(pipeline), name="x", folder=pipeline.folder)
    (line,) = (pipeline.folder / "warnings.jsonl").read_text().splitlines()
    assert "the features have collapsed at step 1" in json.loads(line)["warning"]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")  # Ray's own
def test_a_warning_of_a_ray_worker_reaches_the_terminal_once(
    ray_cluster: None, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = _collapsing(tiny, num_workers=2)
    launch(jobs_of(pipeline), name="x", folder=pipeline.folder)
    assert capsys.readouterr().err.count("warning: the features have collapsed at step 1") == 1


def test_what_a_logger_of_ours_warns_of_is_noted_once_and_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    logger = logging.getLogger("sts_methods.data.file_loaders")
    with warnings_noted(tmp_path):
        for _ in range(2):
            logger.warning("skipped image %d", 7)
        logger.info("all is well")
    logger.warning("after the run")
    (line,) = (tmp_path / "warnings.jsonl").read_text().splitlines()
    assert json.loads(line)["warning"] == "skipped image 7"
    assert capfd.readouterr().err.splitlines() == ["skipped image 7", "skipped image 7", "after the run"]
