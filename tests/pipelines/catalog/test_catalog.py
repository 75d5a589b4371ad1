"""The catalog: every name of the design is there, complete, typed, and survives the way to YAML and back."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from sts_core import SmoothingConfig
from sts_eval import extract_features, linear_probe, published
from sts_methods import LocalRuntime, MetricsLog, build_method, evaluation_data, fit
from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.kinds import base_of, plain_of
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.reading import from_dict
from sts_pipelines.config.sweep import SweepConfig
from sts_pipelines.config.yaml_text import write_yaml

DESIGNED = {
    "quickstart",
    "byol-imagenet-drift",
    *(f"{method}-imagenet-200ep-{kind}" for method in ("moco", "byol") for kind in ("none", "se", "tma", "sts")),
    "byol-imagenet-p-by-m",
    "byol-imagenet-granularity",
    "byol-imagenet-300ep-sts",
    "byol-imagenet-1000ep-sts",
    *(f"fixmatch-cifar10-{labels}-{kind}" for labels in (20, 40, 250, 4000) for kind in ("tma", "sts", "p-by-m")),
    *(f"fixmatch-cifar100-{labels}-{kind}" for labels in (200, 400, 2500, 10000) for kind in ("tma", "sts", "p-by-m")),
    *(
        f"{method}-{data}-{kind}"
        for method in ("byol", "moco", "fixmatch")
        for data in ("digits", "cifar10")
        for kind in ("none", "se", "tma", "sts")
    ),
    *(f"byol-{data}-{sweep}" for data in ("digits", "cifar10") for sweep in ("p-by-m", "granularity")),
    "fixmatch-digits-p-by-m",
}


def test_every_name_of_the_design_is_in_the_catalog() -> None:
    assert set(CATALOG) >= DESIGNED


@pytest.mark.parametrize("name", CATALOG)
def test_an_entry_survives_plain_and_yaml(name: str, tmp_path: Path) -> None:
    recipe = CATALOG[name].build()
    assert base_of(recipe).name == name
    assert from_dict(type(recipe), to_dict(recipe)) == recipe
    (tmp_path / "mine.yaml").write_text(write_yaml(plain_of(recipe)))
    assert resolve(str(tmp_path / "mine.yaml")) == recipe


@pytest.mark.parametrize("name", CATALOG)
def test_an_entry_tells_command_hardware_time_and_expectation(name: str) -> None:
    entry = CATALOG[name]
    for word in (f"sts {entry.verb} {name}", "Hardware:", "Expect"):
        assert word in entry.description
    assert re.search(r"Time:|Hours:", entry.description)
    assert entry.paper
    assert entry.hardware


@pytest.mark.parametrize("method", ["byol", "moco"])
def test_what_failed_in_the_paper_is_expected_to_fail_and_the_rest_to_reach_its_numbers(method: str) -> None:
    assert "Expect it to fail, as it did in the paper." in CATALOG[f"{method}-imagenet-200ep-none"].description
    for smoothing in ("se", "tma", "sts"):
        text = CATALOG[f"{method}-imagenet-200ep-{smoothing}"].description
        assert re.search(r"Expect \d\d\.\d % linear top-1 of the teacher \(paper\)\.", text)


def test_teachers_treat_buffers_as_their_methods_do() -> None:
    for name in CATALOG:
        training = base_of(CATALOG[name].build()).training
        expected = "copy" if training.data.views == "fixmatch" else "keep"
        assert training.smoothing.buffers == expected, name


def test_quickstart_compares_four_teachers_under_equal_conditions() -> None:
    recipe = CATALOG["quickstart"].build()
    assert isinstance(recipe, ComparisonConfig)
    assert list(recipe.variants) == ["none", "tma", "se", "sts"]
    assert recipe.pipeline.cluster.num_workers == 2
    others = {str(to_dict(p.training) | {"smoothing": None}) for p in recipe.pipelines.values()}
    assert len(others) == 1


@pytest.mark.parametrize(("gpus", "workers"), [(0, 2), (1, 1), (8, 2)])
def test_quickstart_uses_the_gpus_of_the_machine(monkeypatch: pytest.MonkeyPatch, gpus: int, workers: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    config = CATALOG["quickstart"].build()
    cluster = base_of(config).cluster
    assert (cluster.use_gpu, cluster.num_workers) == (gpus > 0, workers)
    assert base_of(config).training.global_batch_size % workers == 0


def test_small_pipelines_train_in_process_where_they_are_fastest_and_only_quickstart_shows_ray() -> None:
    runs = [CATALOG[name].build() for name in CATALOG if CATALOG[name].hardware == "2 CPU cores"]
    small = [base_of(config) for config in runs if not isinstance(config, SweepConfig)]
    on_ray = [pipeline.name for pipeline in small if pipeline.cluster.num_workers > 0]
    assert len(small) > 10
    assert on_ray == ["quickstart"]


def test_the_p_by_m_sweep_has_the_paper_s_grid() -> None:
    recipe = CATALOG["byol-imagenet-p-by-m"].build()
    assert isinstance(recipe, SweepConfig)
    assert recipe.sweep.momenta == (0.0, 0.9, 0.99, 0.999)
    assert recipe.sweep.preserve_probabilities == (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999)


def test_a_run_name_changes_with_what_decides_the_weights_and_with_nothing_else() -> None:
    def name(*flags: str) -> str:
        recipe = resolve("byol-digits-sts", flags)
        assert isinstance(recipe, PipelineConfig)
        return recipe.run_name

    same = [["--data.num-workers", "3"], ["--log-every-steps", "1"], ["--cluster.num-workers", "4"]]
    other = [["--seed", "1"], ["--smoothing.momentum", "0.8"], ["--optimizer.lr", "0.3"], ["--steps", "9"]]
    assert {name(*flags) for flags in same} == {name()}
    assert len({name(*flags) for flags in other} | {name()}) == 5


def test_the_filter_of_crops_is_a_flag() -> None:
    name = "byol-imagenet-300ep-deepmind"
    assert base_of(resolve(name)).training.data.interpolation == "bicubic"
    assert base_of(resolve(name, ["--data.interpolation", "bilinear"])).training.data.interpolation == "bilinear"
    assert base_of(resolve(name, ["--data.interpolation", "null"])).training.data.interpolation is None


def test_a_smoothing_is_typed_and_not_a_dict() -> None:
    recipe = resolve("quickstart", ["--variants.sts.momentum", "0.5"])
    assert isinstance(recipe, ComparisonConfig)
    assert recipe.variants["sts"] == SmoothingConfig(momentum=0.5, preserve_probability=0.7, buffers="keep")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["byol-digits-sts", "moco-digits-tma", "moco-digits-sts"])
def test_a_teacher_of_digits_beats_the_untrained_network(name: str, tmp_path: Path) -> None:
    pipeline = CATALOG[name].build()
    assert isinstance(pipeline, PipelineConfig)
    untrained = build_method(pipeline.training.method, seed=0).backbone("teacher")
    trained = fit(pipeline.training, LocalRuntime(tmp_path, progress=False)).backbone("teacher")
    before, after = (linear_top1(backbone, pipeline) for backbone in (untrained, trained))
    assert after > before + 3, f"{name}: {after:.1f} % after training, {before:.1f} % before"


def linear_top1(backbone: nn.Module, pipeline: PipelineConfig) -> float:
    train, test = (extract_features(backbone, split) for split in evaluation_data(pipeline.training.data))
    entries = linear_probe(train, test, pipeline.evaluation.linear).entries("teacher")
    return float(next(entry["value"] for entry in entries if (entry["metric"], entry["which"]) == ("top1", "last")))


def test_the_number_to_expect_is_the_one_that_the_paper_prints() -> None:
    numbers = {entry: published(*entry.published) for entry in CATALOG.values() if entry.published is not None}
    assert len(numbers) == 8 + 2 + 2 + 16  # 200 epochs; 300 and 1000; lr and DeepMind; FixMatch
    for entry, number in numbers.items():
        assert "{" not in entry.description
        assert ("it to fail" if number.value is None else f"{number.printed} %") in entry.description


@pytest.mark.parametrize("name", ["byol-imagenet-200ep-se", "moco-imagenet-200ep-se", "byol-imagenet-granularity"])
def test_se_on_imagenet_says_that_its_strength_is_our_choice(name: str) -> None:
    assert "SE here has p = .999 and a constant m = 0, which is our choice" in CATALOG[name].description
    assert "our choice" not in CATALOG[name.replace("-se", "-sts").replace("imagenet-gran", "digits-gran")].description


def test_the_smoothing_figure_is_the_beginning_of_a_long_training() -> None:
    for name, length, stop in (("byol-imagenet-drift", 200, 20), ("byol-digits-drift", 70, 7)):
        recipe = CATALOG[name].build()
        assert isinstance(recipe, ComparisonConfig)
        training = recipe.pipeline.training
        assert (training.epochs, training.steps, training.stop_after_epochs) == (length, None, stop)


@pytest.mark.slow
def test_the_smoothing_figure_on_digits_has_the_paper_s_order_to_its_last_epoch(tmp_path: Path) -> None:
    recipe = CATALOG["byol-digits-drift"].build()
    assert isinstance(recipe, ComparisonConfig)
    drifts = {}
    for name in ("none", "tma"):
        training = replace(recipe.pipelines[name].training, stop_after_epochs=4)
        fit(training, LocalRuntime(tmp_path / name, progress=False))
        lines = MetricsLog(tmp_path / name / "metrics.jsonl").read()
        drifts[name] = [(line["parameter_drift"], line["output_drift"]) for line in lines if "output_drift" in line]
    assert all(smoothed < none for smoothed, none in zip(drifts["tma"][-1], drifts["none"][-1], strict=True))
    assert all(
        2 * sum(smoothed) < sum(none)
        for smoothed, none in zip(zip(*drifts["tma"], strict=True), zip(*drifts["none"], strict=True), strict=True)
    )
