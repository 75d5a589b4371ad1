"""Which rows of the paper a run repeats, by what its folder says of it."""

import json
import re
from dataclasses import replace

import pytest

from sts_core import temporal_moving_average
from sts_eval import RunResults, add_entries, compare_with_paper, comparison_table, load_run, write_results
from sts_eval.paper.numbers import PUBLISHED
from sts_eval.paper.rows import ROWS, conditions_of, rows_of
from tests.eval.paper.recorded import linear


def moco(**changes):
    from sts_methods import DataConfig, MoCoConfig, TrainingConfig

    data = DataConfig(dataset="imagefolder", views="moco")
    fields = {"method": MoCoConfig(backbone="resnet18"), "smoothing": temporal_moving_average(0.999), "data": data}
    return TrainingConfig(**fields | {"epochs": 5, "global_batch_size": 64, "seed": 7} | changes)


def test_conditions_come_from_what_the_run_says_of_its_training(tmp_path):
    from sts_methods import describe_training

    told = describe_training(moco())
    assert conditions_of(describe_training(moco(stop_after_epochs=2)))["epochs"] == 2  # no row of five
    (tmp_path / "training.json").write_text(json.dumps(told))
    write_results(tmp_path, RunResults(run="a", entries=(linear(30.0, num_train=1500),)))
    run = load_run(tmp_path)
    assert run.seed == 7
    assert run.conditions["smoothing"] == "tma"
    assert (run.conditions["momentum"], run.conditions["preserve_probability"]) == (0.999, 0.0)
    assert run.conditions["dataset"] == "imagefolder"
    assert compare_with_paper([run])[0].published.row == "MoCo TMA"
    write_results(tmp_path, RunResults(run="a", entries=(linear(30.0),)))
    assert load_run(tmp_path).conditions["dataset"] == "imagenet"  # it has ImageNet's number of images
    (tmp_path / "training.json").unlink()
    assert load_run(tmp_path).seed is None
    assert load_run(tmp_path, describe=lambda folder: told).seed == 7


def write_run(folder, entry, *, metrics=None, **changes):
    """A run of the paper's BYOL with STS as pipelines write it; `changes` are of whole sections."""
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.config.kinds import plain_of
    from sts_pipelines.config.pipeline import PipelineConfig
    from sts_pipelines.config.reading import from_dict
    from sts_pipelines.config.run_folder import describe_run

    plain = plain_of(CATALOG["byol-imagenet-200ep-sts"].build()) | {"name": folder.name}
    plain |= {name: plain[name] | value if isinstance(value, dict) else value for name, value in changes.items()}
    del plain["kind"]
    folder.mkdir(exist_ok=True)
    (folder / "training.json").write_text(json.dumps(describe_run(from_dict(PipelineConfig, plain))))
    if metrics is not None:
        (folder / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    write_results(folder, RunResults(run=folder.name, entries=(entry,)))
    return load_run(folder)


@pytest.mark.parametrize(
    ("other", "averaged"),
    [
        ({}, True),
        ({"cluster": {"num_workers": 4}, "data": {"root": "/data", "num_workers": 2}, "log_every_steps": 9}, True),
        ({"optimizer": {"lr": 0.1}}, False),  # each of the two may stand beside the paper
        ({"optimizer": {"warmup_epochs": 0.0}}, False),
        ({"smoothing": {"buffers": "copy"}}, False),
        ({"method": {"hidden_dim": 512}}, False),
    ],
)
def test_other_recipes_do_not_pass_for_other_seeds_nor_vanish_behind_the_same_seed(tmp_path, other, averaged):
    first = write_run(tmp_path / "a", linear(72.0))
    for seed in (0, 1):
        second = write_run(tmp_path / "b", linear(70.0), seed=seed, **other)
        found = [c.values for c in compare_with_paper([first, second]) if c.published.row == "BYOL STS"]
        if averaged:
            assert found == ([(72.0, 70.0)] if seed else [(70.0,)])  # of one seed twice the last counts
        else:
            assert found == [(72.0,), (70.0,)]
            assert "| 72.00 (one seed) | a |" in comparison_table(compare_with_paper([first, second]))
    assert compare_with_paper([first])[0].comparable


def test_every_pipeline_of_a_row_of_the_paper_has_that_rows_recipe():
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.config.pipeline import PipelineConfig
    from sts_pipelines.config.run_folder import describe_run

    names = [n for n in CATALOG if re.match(r"(byol|moco)-imagenet-\d+ep-(none|se|tma|sts)|fixmatch-cifar\d+-\d", n)]
    found = {name: recipe for name in names if isinstance(recipe := CATALOG[name].build(), PipelineConfig)}
    assert {"byol-imagenet-200ep-sts", "byol-imagenet-200ep-sts-lr0.1", "fixmatch-cifar100-400-tma"} <= set(found)
    for name, recipe in found.items():
        evaluation = "few-labels" if name.startswith("fixmatch") else "linear"
        conditions = conditions_of(describe_run(recipe))
        rows = rows_of(conditions, evaluation)
        expected = [] if evaluation == "few-labels" else ["dataset imagefolder instead of imagenet"]
        assert rows
        assert all(row.differences(conditions) == expected for row in rows), name


@pytest.mark.parametrize(
    ("name", "section", "change", "difference"),
    [
        ("moco-imagenet-200ep-sts", "method", {"queue_size": 256}, "queue_size 256 instead of 65536"),
        ("fixmatch-cifar10-40-sts", "data", {"unlabelled_ratio": 1}, "unlabelled_ratio 1 instead of 7"),
        ("fixmatch-cifar10-40-sts", "method", {"pseudo_labels": "teacher"}, "pseudo_labels teacher instead of student"),
        ("fixmatch-cifar10-40-sts", "optimizer", {"momentum": 0.5}, "sgd_momentum 0.5 instead of 0.9"),
    ],
)
def test_a_recipe_that_contradicts_what_the_paper_says_is_a_difference(name, section, change, difference):
    from sts_methods import describe_training
    from sts_pipelines.catalog import CATALOG

    training = CATALOG[name].build().training
    changed = replace(training, **{section: replace(getattr(training, section), **change)})
    conditions = conditions_of(describe_training(changed))
    rows = rows_of(conditions, "few-labels" if name.startswith("fixmatch") else "linear")
    assert rows
    assert all(difference in row.differences(conditions) for row in rows)


def test_a_run_in_bfloat16_departs_from_rows_that_the_paper_trained_in_float32():
    from sts_methods import describe_training
    from sts_pipelines.catalog import CATALOG

    for name, evaluation in (("byol-imagenet-200ep-sts", "linear"), ("fixmatch-cifar10-40-sts", "few-labels")):
        training = replace(CATALOG[name].build().training, precision="bfloat16")
        conditions = conditions_of(describe_training(training))
        rows = rows_of(conditions, evaluation)
        assert rows
        assert all("reduced_precision bfloat16 instead of none" in row.differences(conditions) for row in rows)


def test_imagenet_is_known_by_the_steps_of_an_epoch_where_no_probe_counted_its_images(tmp_path):
    entry = {"evaluation": "voc", "network": "teacher", "metric": "AP", "value": 57.0, "which": "last"}
    entry["not_comparable"] = []

    def compared(**run):
        return compare_with_paper([write_run(tmp_path / "run", entry, **run)])[0]

    untold = compared()
    assert untold.differences == ("dataset imagefolder (nothing says whether it is ImageNet) instead of imagenet",)
    assert untold.minus_paper is None
    assert compared(metrics={"step": 7500, "epoch": 7500 / 5004}).comparable  # 1,281,167 // 256
    other = compared(metrics={"step": 7500, "epoch": 7500 / 500})
    assert other.differences == ("dataset imagefolder instead of imagenet",)


def test_a_probe_on_imagenet_does_not_make_the_training_data_imagenet(tmp_path):
    run = write_run(tmp_path / "run", linear(60.0), data={"dataset": "cifar10"})
    assert run.conditions["dataset"] == "cifar10"
    short = write_run(tmp_path / "run", linear(60.0), metrics={"step": 7500, "epoch": 7500 / 500})
    assert short.conditions["dataset"] == "imagefolder"  # trained on something of 500 steps per epoch
    elsewhere = {"dataset": "imagefolder", "root": "/imagenet", "image_size": 224, "precision": "float32"}
    other = write_run(tmp_path / "other", linear(60.0, data=elsewhere), data={"root": "/flowers"})
    assert other.conditions["dataset"].startswith("imagefolder (nothing says")


def measured(tmp_path, *entries, **changes):
    """The comparisons of a run whose entries were measured one after the other, the last one newest."""
    write_run(tmp_path / "run", linear(0.0), **changes)
    (tmp_path / "run" / "results.json").unlink()
    for entry in entries:
        add_entries(tmp_path / "run", [entry])
    return [c for c in compare_with_paper([load_run(tmp_path / "run")]) if c.published.row == "BYOL STS"]


def test_of_a_number_measured_again_under_other_settings_the_newest_counts(tmp_path):
    found = measured(tmp_path, linear(70.0, settings="a"), linear(71.0, settings="b"))
    assert [c.values for c in found] == [(71.0,)]


def test_numbers_on_other_data_stand_alone_and_say_so(tmp_path):
    own = {"dataset": "imagefolder", "root": None, "image_size": 224, "precision": "float32"}
    small = own | {"image_size": 160}
    found = measured(tmp_path, linear(70.0, data=own, settings="a"), linear(60.0, data=small, settings="b"))
    assert [(c.values, c.differences) for c in found] == [((60.0,), ("evaluated with image_size 160",)), ((70.0,), ())]


def test_every_row_that_can_be_repeated_is_printed_in_the_paper():
    cells = {(row.table, row.row, column) for row in ROWS for column in row.metrics}
    assert cells <= set(PUBLISHED)
    ours = {key for key in PUBLISHED if key[0].startswith("effect-of")}
    assert ours <= cells
