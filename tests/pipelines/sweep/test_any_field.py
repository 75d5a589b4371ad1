"""Sweeps over fields of the config besides m and p, and over seeds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sts_core import ConfigError
from sts_eval import estimate
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.errors import SchemaError
from sts_pipelines.sweep.run import job_of, run_sweep, sweep_folder
from sts_pipelines.sweep.trials import trials_of

Tiny = Callable[..., PipelineConfig]
LR = "--sweep.over", "optimizer.lr=0.3,0.6"


def sweep(*flags: str, of: str = "byol-digits-sts") -> SweepConfig:
    config = resolve(of, flags, to_sweep=True)
    assert isinstance(config, SweepConfig)
    return config


def test_a_pipeline_is_swept_over_the_fields_that_flags_name_and_keeps_its_teacher() -> None:
    config = sweep(*LR, "--sweep.over", "data.image-size=12,16", "--smoothing.momentum", "0.8")
    names = [trial.name for trial in trials_of(config)]
    assert names == [
        f"m0.8-p0.7-optimizer.lr{lr}-data.image_size{size}" for lr in ("0.3", "0.6") for size in ("12", "16")
    ]
    jobs = [job_of(trial, config.pipeline, sweep_folder(config)) for trial in trials_of(config)]
    trained = [(job.pipeline.training.optimizer.lr, job.pipeline.training.data.image_size) for job in jobs]
    assert trained == [(0.3, 12), (0.3, 16), (0.6, 12), (0.6, 16)]
    assert {job.pipeline.training.smoothing.momentum for job in jobs} == {0.8}


@pytest.mark.parametrize(
    ("asked", "metric"),
    [
        ("linear,knn", "knn/teacher/top1"),
        ("voc,linear", "linear/teacher/top1"),
        ("imagenet-c", "imagenet-c/teacher/top1"),
        ("voc", "voc/teacher/AP"),
    ],
)
def test_a_swept_pipeline_is_ranked_by_an_evaluation_that_it_asks_for_the_quickest(asked: str, metric: str) -> None:
    config = sweep(*LR, "--evaluation.after-training", asked, "--evaluation.voc.data-root", ".")
    assert config.sweep.metric == metric


def test_a_field_beside_m_and_p_multiplies_the_grid_and_smoothing_fields_replace_its_axes() -> None:
    grid = ("--sweep.momenta", "0.9", "--sweep.preserve-probabilities", "0,0.5")
    assert len(trials_of(sweep(*grid, *LR, of="byol-digits-p-by-m"))) == 4
    config = sweep("--sweep.over", "smoothing.granularity=layer,neuron", "--sweep.over", "smoothing.momentum=0,0.5")
    names = ["m0-p0.7", "m0.5-p0.7", "m0-p0.7-neuron", "m0.5-p0.7-neuron"]
    assert [trial.name for trial in trials_of(config)] == names


def test_more_values_and_more_seeds_find_the_trials_that_are_there() -> None:
    less = sweep(*LR, "--sweep.seeds", "0,1")
    more = sweep("--sweep.over", "optimizer.lr=0.3,0.6,1.2", "--sweep.seeds", "0,1,2")
    assert sweep_folder(less) == sweep_folder(more)
    assert {trial.name for trial in trials_of(less)} < {trial.name for trial in trials_of(more)}
    assert sweep_folder(less) != sweep_folder(sweep(*LR, "--sweep.seeds", "0,1", "--optimizer.momentum", "0.5"))
    views = ("--sweep.over", "data.views=byol,moco")
    assert sweep_folder(sweep(*views)) == sweep_folder(sweep(*views, "--data.views", "moco"))


def test_controls_have_the_settings_and_the_seed_of_their_trial() -> None:
    config = sweep(*LR, "--sweep.seeds", "3", "--sweep.with-control", "true")
    controls = [trial for trial in trials_of(config) if trial.control]
    assert [trial.name for trial in controls] == [f"m0.97-p0-optimizer.lr{lr}-seed3" for lr in ("0.3", "0.6")]
    assert controls[0].pipeline_of(config.pipeline).training.seed == 3


def test_random_search_draws_the_same_samples_every_time_and_leaves_a_given_teacher_alone() -> None:
    flags = ("--sweep.search", "random", "--sweep.num-samples", "12")
    trials = trials_of(sweep(*LR, "--sweep.over", "data.image-size=12,14,16", *flags))
    assert trials == trials_of(sweep(*LR, "--sweep.over", "data.image-size=12,14,16", *flags))
    assert {trial.smoothing.momentum for trial in trials} == {0.9}
    assert len({trial.name for trial in trials}) == len(trials) > 3
    drawn = trials_of(sweep(*LR, *flags, of="byol-digits-p-by-m"))
    assert len({trial.smoothing.momentum for trial in drawn}) > 6


def test_values_of_a_yaml_file_are_those_of_the_flag() -> None:
    typed = GridConfig(over={"optimizer.lr": (0.3, 0.6)}, momenta=(0.9,), preserve_probabilities=(0.7,))
    config = SweepConfig(pipeline=sweep(*LR).pipeline, sweep=typed)
    assert [trial.name for trial in trials_of(config)] == [trial.name for trial in trials_of(sweep(*LR))]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--sweep.over", "optimizer.lrr=1"), "optimizer.lrr is unknown: did you mean optimizer.lr?"),
        (("--sweep.over", "optimizer.lr=fast"), "optimizer.lr must be a number, got 'fast'"),
        (("--sweep.over", "data.image-size=12,huge"), "data.image_size must be a whole number, got 'huge'"),
        (("--sweep.over", "optimizer.lr"), "sweep.over must be a section of named entries"),
        (("--sweep.over", "optimizer.lr="), "over: optimizer.lr needs at least one value"),
        (("--sweep.over", "seed=1,2"), "over: seed is not a setting to choose, but one to average over: set seeds"),
        (("--sweep.over", "smoothing.momentum=2"), r"over: smoothing.momentum must be in \[0, 1\], got 2"),
        (("--sweep.seeds", "1,1"), "seeds must differ"),
    ],
)
def test_a_mistake_names_the_field_and_the_value(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises((SchemaError, ConfigError), match=message):
        trials_of(sweep(*flags))


def test_a_sweep_of_fields_and_seeds_trains_ranks_and_tabulates(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = tiny("byol-digits-sts", steps=2)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    grid = GridConfig(over={"optimizer.lr": (0.01, 0.02)}, seeds=(0, 1), cells=((0.9, 0.5),))
    config = SweepConfig(pipeline=pipeline, sweep=grid)
    found = run_sweep(config)
    assert [outcome.trial.seed for outcome in found] == [0, 1, 0, 1]
    folder = sweep_folder(config)
    rows = (folder / "sweep.csv").read_text().splitlines()
    assert rows[0].startswith("trial,m,p,granularity,m_eff,optimizer.lr,seed,control,knn/teacher/top1")
    assert "m0.9-p0.5-optimizer.lr0.01-seed1" in rows[2]
    text = (folder / "m0.9-p0.5-optimizer.lr0.02-seed1" / "config.yaml").read_text()
    assert "lr: 0.02" in text
    assert "\nseed: 1\n" in text
    printed = capsys.readouterr().out
    assert "mean and 95 % interval" in printed
    values = [outcome.value for outcome in found if outcome.value is not None]
    for cell in (values[:2], values[2:]):
        assert str(estimate(cell)) in printed
    assert printed.count("(2 seeds)") == 2


def test_a_pipeline_without_anything_to_vary_is_no_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "byol-digits-sts"]) == 2
    assert "say what to vary, as in --sweep.over optimizer.lr=0.03,0.1" in capsys.readouterr().err
