"""The untrained network as a baseline: what a run's student and teacher both were before the first step."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sts_core.fields import flattened
from sts_eval import extract_features, nearest_neighbours, read_results
from sts_methods import InitialConfig, build_method, evaluation_data
from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.evaluation.settings import is_evaluated
from sts_pipelines.terminal import format_table, value_of
from tests.pipelines.conftest import run

Tiny = Callable[..., PipelineConfig]
ALL = ("teacher", "student", "untrained")


def asking_for(pipeline: PipelineConfig, *asked: str) -> PipelineConfig:
    return replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=asked, networks=ALL))


@pytest.mark.parametrize("seed", [0, 3])
def test_the_untrained_column_is_the_network_that_the_runs_seed_starts_from(tiny: Tiny, seed: int) -> None:
    pipeline = asking_for(tiny("byol-digits-tma", steps=4, seed=seed), "knn")
    entries = read_results(run(pipeline)).entries
    fresh = build_method(pipeline.training.method, seed=seed).backbone("student")
    train, test = (extract_features(fresh, split) for split in evaluation_data(pipeline.training.data))
    expected = nearest_neighbours(train, test, pipeline.evaluation.knn).entries("untrained")
    assert value_of(entries, "knn/untrained/top1") == expected[0]["value"]
    assert value_of(entries, "knn/untrained/top1") != value_of(entries, "knn/student/top1")
    heading, row = format_table({"run": entries}).splitlines()
    assert "k-NN untrained" in heading
    assert row.endswith(f"{expected[0]['value']:.1f}")


def test_a_run_that_starts_from_trained_weights_is_set_beside_those(tiny: Tiny) -> None:
    first = run(asking_for(tiny("byol-digits-tma", steps=4), "knn"))
    later = tiny("byol-digits-tma", steps=1, seed=5, initial=InitialConfig(weights=str(first), network="student"))
    entries = read_results(run(asking_for(later, "knn"))).entries
    assert value_of(entries, "knn/untrained/top1") == value_of(read_results(first).entries, "knn/student/top1")


def test_the_classifier_of_an_untrained_network_is_no_baseline_and_not_missed(tiny: Tiny) -> None:
    pipeline = asking_for(tiny("fixmatch-digits-tma", steps=2), "few-labels")
    folder = run(pipeline)
    assert {entry["network"] for entry in read_results(folder).entries} == {"teacher", "student"}
    assert is_evaluated(folder, pipeline)


def test_the_quickstart_sets_what_training_brought_beside_no_training() -> None:
    comparison = CATALOG["quickstart"].build()
    assert isinstance(comparison, ComparisonConfig)
    assert [one.evaluation.networks for one in comparison.pipelines.values()] == [ALL] * 4


def test_other_pipelines_measure_what_they_trained_alone() -> None:
    networks = flattened(to_dict(CATALOG["byol-digits-sts"].build()))["evaluation.networks"]
    assert networks == ["teacher", "student"]
