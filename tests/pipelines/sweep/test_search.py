"""Searches that learn: Optuna itself, told what the trials before have reached, by runs or by a stand-in for them."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.launch.cluster import TRIAL_CPUS
from sts_pipelines.sweep import run, search
from sts_pipelines.sweep.run import run_sweep, sweep_folder
from sts_pipelines.sweep.search import Search
from sts_pipelines.sweep.trials import Trial

Tiny = Callable[..., PipelineConfig]
BEST = 0.8
"""The p that the stand-in likes best."""


def sweep_of(tiny: Tiny, **grid: Any) -> SweepConfig:
    pipeline = tiny("byol-digits-sts", steps=2)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    return SweepConfig(pipeline=pipeline, sweep=GridConfig(search="optuna", **grid))


def value_of(trial: Trial) -> float:
    lr = trial.settings.get("optimizer.lr", 0.0)
    return 100.0 - 100.0 * abs(trial.smoothing.preserve_probability - BEST) - 10.0 * float(lr) + (trial.seed or 0)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[Trial]]:
    """The trials that were trained, round by round; instead of being trained they have a value."""
    done: list[list[Trial]] = []
    values: dict[str, float] = {}

    def train(config: SweepConfig, trials: Sequence[Trial], folder: Path) -> None:
        done.append(list(trials))
        values.update({trial.name: value_of(trial) for trial in trials})

    monkeypatch.setattr(run, "_train", train)
    monkeypatch.setattr(search, "value_in", lambda folder, metric: values.get(folder.name))
    return done


def searched(config: SweepConfig) -> list[Trial]:
    return run._search(config, sweep_folder(config))


def test_optuna_learns_where_the_good_trials_are(tiny: Tiny, rounds: list[list[Trial]]) -> None:
    trials = searched(sweep_of(tiny, num_samples=20, over={"optimizer.lr": (0.01, 1.0)}, seeds=(0, 1)))
    assert [len(one) for one in rounds] == [2] * 20
    assert len(trials) == 40
    values = [value_of(trial) for trial in trials]
    assert sum(values[20:]) > sum(values[:20]) + 20 * 5.0  # the first ten points are random
    assert {trial.seed for trial in trials} == {0, 1}


def test_a_killed_search_goes_on_as_if_nothing_had_been_and_more_samples_add_to_it(
    tiny: Tiny, rounds: list[list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sweep_of(tiny, num_samples=12)
    straight = [trial.name for trial in searched(config)]
    points = Search(config, sweep_folder(config)).file
    points.write_text(json.dumps(json.loads(points.read_text())[:10]))
    assert [trial.name for trial in searched(config)] == straight
    more = [trial.name for trial in searched(replace(config, sweep=replace(config.sweep, num_samples=13)))]
    assert more[:12] == straight
    assert len(set(more)) == 13
    points.write_text("[[]]")
    with pytest.raises(UsageError, match="are damaged: remove it"):
        searched(config)


def test_rounds_are_as_wide_as_the_machine_and_controls_come_last(tiny: Tiny, rounds: list[list[Trial]]) -> None:
    trials = searched(sweep_of(tiny, num_samples=5, max_concurrent=4, seeds=(0, 1), with_control=True))
    assert [len(one) for one in rounds] == [4, 4, 2, 10]
    assert [trial.control for trial in trials] == [False] * 10 + [True] * 10


@contextlib.contextmanager
def no_cluster(config: ClusterConfig, **options: Any) -> Iterator[None]:
    yield


def on_a_cluster(config: SweepConfig, address: str) -> SweepConfig:
    cluster = replace(config.pipeline.cluster, num_workers=1, address=address)
    return replace(config, pipeline=replace(config.pipeline, cluster=cluster))


def test_rounds_are_as_wide_as_the_cluster_that_is_joined(
    tiny: Tiny, rounds: list[list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    config = on_a_cluster(sweep_of(tiny, num_samples=12), "10.0.0.1:6379")
    needed = config.pipeline.cluster.cpus_per_worker + TRIAL_CPUS
    monkeypatch.setattr(run, "ray_cluster", no_cluster)
    monkeypatch.setattr(run, "local_resources", lambda: {"CPU": 1.0})
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 5 * needed})
    searched(config)
    assert [len(one) for one in rounds] == [5, 5, 2]


@pytest.mark.parametrize("with_control", [False, True])
def test_a_search_that_is_finished_starts_no_ray(
    with_control: bool, tiny: Tiny, rounds: list[list[Trial]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def cluster(config: ClusterConfig, **options: Any) -> AbstractContextManager[None]:
        started.append(str(config.address))
        return no_cluster(config)

    monkeypatch.setattr(run, "ray_cluster", cluster)
    monkeypatch.setattr(run, "is_finished", lambda folder, *_, **__: folder.name in {t.name for r in rounds for t in r})
    config = on_a_cluster(sweep_of(tiny, num_samples=2, max_concurrent=1, with_control=with_control), "auto")
    trials = searched(config)
    assert searched(config) == trials
    assert started == ["auto"]
    rounds.clear()
    searched(config)
    assert started == ["auto"] * 2, "its points are known, and nothing else"


@pytest.mark.slow
def test_a_search_trains_ranks_and_shows_means_with_intervals(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    config = sweep_of(tiny, num_samples=1, seeds=(0, 1), over={"smoothing.momentum": (0.9,)})
    found = run_sweep(config)
    assert [outcome.trial.seed for outcome in found] == [0, 1]
    assert all(outcome.value is not None for outcome in found)
    assert {outcome.trial.smoothing.momentum for outcome in found} == {0.9}
    assert capsys.readouterr().out.count("(2 seeds)") == 1
    search = Search(config, sweep_folder(config))
    (drawn,) = search.points
    assert search.value_of(drawn) == sum(outcome.value or 0.0 for outcome in found) / 2


def test_a_search_without_its_package_is_one_sentence(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.tune.search.optuna import optuna_search

    monkeypatch.setattr(optuna_search, "ot", None)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"needs the package optuna: pip install sts-pipelines\[optuna\]"):
        searched(sweep_of(tiny, num_samples=1))
