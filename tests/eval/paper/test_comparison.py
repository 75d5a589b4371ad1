import json
import math
import re
from dataclasses import replace

import pytest
import scipy.stats

from sts_core import temporal_moving_average
from sts_core.errors import ConfigError
from sts_eval import (
    RunResults,
    add_entries,
    byol_protocol,
    compare_with_paper,
    comparison_table,
    fast_protocol,
    load_run,
    write_results,
)
from sts_eval.corruptions.benchmark import MAIN_CORRUPTIONS, SEVERITIES
from sts_eval.intervals import estimate, t_quantile
from sts_eval.paper.comparison import with_conditions
from sts_eval.paper.numbers import PUBLISHED
from sts_eval.paper.rows import ROWS, conditions_of, rows_of

IMAGENET = {
    "method": "byol",
    "smoothing": "sts",
    "granularity": "layer",
    "momentum": 0.99,
    "preserve_probability": 0.7,
    "dataset": "imagenet",
    "backbone": "resnet50",
    "epochs": 200,
    "global_batch_size": 256,
    "momentum_schedule": "cosine",
    "stem": "imagenet",
    "image_size": 224,
    "augmentation": "byol",
    "optimizer": "sgd",
    "lr": 0.1,
    "lr_schedule": "cosine",
    "weight_decay": 1e-4,
    "sgd_momentum": 0.9,
    "warmup_epochs": 10.0,
}


def linear(value, **changes):
    entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "value": value, "which": "best"}
    protocol = json.loads(json.dumps(byol_protocol().__dict__))  # as it comes back from results.json
    fed = {"num_train": 1_281_167, "num_test": 50_000, "cropped_from": "whole images"}
    return entry | {"protocol": protocol, **fed} | changes


def runs(values, conditions=IMAGENET, **changes):
    return [
        RunResults(run=f"run-{seed}", entries=(linear(value, **changes),), seed=seed, conditions=conditions)
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 30, 101])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_the_t_quantile_equals_scipys(degrees, confidence):
    assert t_quantile(confidence, degrees) == pytest.approx(scipy.stats.t.ppf(0.5 + confidence / 2, degrees), rel=1e-9)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    import numpy as np

    draws = np.random.Generator(np.random.Philox(key=1)).normal(3.0, 2.0, (2000, 4))
    covered = [e.low <= 3.0 <= e.high for e in (estimate(row.tolist(), 0.9) for row in draws)]
    assert 0.88 < sum(covered) / len(covered) < 0.92


def test_one_seed_has_no_interval_and_says_so():
    single = estimate([72.0])
    assert (single.low, single.high, str(single)) == (None, None, "72.00 (one seed)")
    with pytest.raises(ConfigError):
        estimate([])


def test_a_run_of_the_papers_recipe_stands_beside_each_row_it_repeats():
    found = compare_with_paper(runs([72.5, 72.7, 72.9]))
    assert {(c.published.table, c.published.row) for c in found} == {
        ("effect-of-sts", "BYOL STS"),
        ("granularity", "STS LW"),
    }
    first = found[0]
    assert first.comparable
    assert first.ours.mean == pytest.approx(72.7)
    assert first.minus_paper == pytest.approx(0.0)
    assert first.ours.high - first.ours.mean == pytest.approx(scipy.stats.t.ppf(0.975, 2) * 0.2 / 3**0.5)
    assert first.agrees is True
    assert compare_with_paper(runs([60.0, 60.1]))[0].agrees is False
    assert compare_with_paper(runs([72.7]))[0].agrees is None


@pytest.mark.parametrize(
    ("conditions", "entry", "reason"),
    [
        ({"epochs": 2}, {}, "epochs 2 instead of 200"),
        ({"dataset": "digits"}, {}, "dataset digits instead of imagenet"),
        ({"backbone": "resnet18"}, {}, "backbone resnet18 instead of resnet50"),
        ({"preserve_probability": 0.3}, {}, "preserve_probability 0.3 instead of 0.7"),
        ({"momentum": 0.9}, {}, "momentum 0.9 instead of 0.99"),
        ({"lr": 5.0}, {}, "lr 5.0 instead of 0.1 or 0.05"),
        ({"stem": "cifar"}, {}, "stem cifar instead of imagenet"),
        ({"image_size": 32}, {}, "image_size 32 instead of 224"),
        ({"augmentation": "moco"}, {}, "augmentation moco instead of byol"),
        ({"momentum_schedule": "constant"}, {}, "momentum_schedule constant instead of cosine"),
        ({"sgd_momentum": 0.0}, {}, "sgd_momentum 0.0 instead of 0.9"),
        ({"warmup_epochs": 0.0}, {}, "warmup_epochs 0.0 instead of 10"),
        ({}, {"data": {"image_size": 160}}, "evaluated with image_size 160"),
        ({}, {"data": {"precision": "bfloat16"}}, "evaluated with precision bfloat16"),
        ({}, {"network": "student"}, "network student instead of teacher"),
        ({}, {"num_test": 500}, "linear num_test 500 instead of 50000"),
        ({}, {"protocol": byol_protocol(augment=False).__dict__}, "linear augment False instead of True"),
    ],
)
def test_what_departs_from_the_paper_may_not_stand_beside_it_and_says_why(conditions, entry, reason):
    found = compare_with_paper(runs([50.0], IMAGENET | conditions, **entry))
    assert found
    assert all(not c.comparable and reason in c.differences for c in found)
    assert f"no: {reason}" in comparison_table(found)


def test_an_exact_solver_is_one_departure_and_not_one_for_each_setting_that_it_does_not_use():
    (first, *_) = compare_with_paper(runs([70.0], protocol=fast_protocol().__dict__))
    assert first.differences == ("linear solver lbfgs instead of sgd",)


def test_seeds_are_averaged_but_a_repeated_seed_is_not_two_measurements():
    same = [
        RunResults(run=name, entries=(linear(v),), seed=1, conditions=IMAGENET)
        for name, v in (("a", 70.0), ("b", 72.0))
    ]
    assert compare_with_paper(same)[0].ours.count == 1
    other = runs([70.0, 72.0]) + runs([10.0], IMAGENET | {"epochs": 3})
    counts = {(c.ours.count, c.comparable) for c in compare_with_paper(other)}
    assert (2, True) in counts
    assert (1, False) in counts


def test_runs_of_other_m_or_p_and_other_protocols_are_not_averaged():
    def means(**other):
        second = RunResults(run="b", entries=(linear(72.0, **other),), seed=9, conditions=IMAGENET)
        return {c.ours.mean for c in compare_with_paper([*runs([70.0]), second])}

    assert means() == {71.0}
    assert means(protocol=byol_protocol(evaluate_every_epochs=1).__dict__) == {70.0, 72.0}  # which epoch is best
    for name in ("momentum", "preserve_probability"):
        other = runs([72.0], IMAGENET | {name: 0.5})
        assert {c.ours.mean for c in compare_with_paper(runs([70.0]) + other)} == {70.0, 72.0}


def test_longer_training_is_compared_with_the_longer_rows():
    found = compare_with_paper(runs([73.1], IMAGENET | {"epochs": 300}))
    assert {c.published.row for c in found} == {"Ours (BYOL + STS) 300"}


def test_a_failed_row_has_no_difference():
    conditions = {k: v for k, v in IMAGENET.items() if k != "granularity"} | {"smoothing": "none"}
    found = compare_with_paper(runs([0.1, 0.1], conditions))
    assert [(c.published.printed, c.minus_paper, c.agrees) for c in found] == [("fail", None, None)]


def test_accuracy_on_other_data_has_no_difference_to_the_papers():
    found = compare_with_paper(runs([98.0, 99.0], IMAGENET | {"dataset": "digits"}))
    assert {(c.minus_paper, c.agrees) for c in found} == {(None, None)}


def test_few_labels_find_their_column():
    conditions = {"method": "fixmatch", "smoothing": "tma", "dataset": "cifar10", "backbone": "wrn_28_2"}
    conditions |= {"num_labels": 40, "steps": 2**20, "global_batch_size": 64, "momentum": 0.999}
    conditions |= {"momentum_schedule": "constant", "stem": "cifar", "image_size": 32, "augmentation": "fixmatch"}
    conditions |= {"optimizer": "sgd", "lr": 0.03, "lr_schedule": "cosine_7_16", "weight_decay": 5e-4}
    conditions |= {"sgd_momentum": 0.9, "unlabelled_ratio": 7, "pseudo_labels": "student"}
    entry = {"evaluation": "few-labels", "network": "teacher", "metric": "top1-median", "value": 92.0, "which": "last"}
    (found,) = compare_with_paper([RunResults(run="a", entries=(entry,), seed=0, conditions=conditions)])
    assert (found.published.row, found.published.column) == ("FixMatch", "CIFAR-10 40")
    assert (found.which, found.comparable) == ("median of the last checkpoints", True)


def test_a_detection_transfer_that_judges_itself_incomparable_may_not_stand():
    def run(**details):
        entry = {"evaluation": "voc", "network": "teacher", "metric": "AP75", "value": 64.0, "which": "last"}
        return RunResults(run="a", entries=(entry | details,), seed=0, conditions=IMAGENET)

    (fair,) = compare_with_paper([run(not_comparable=[])])
    assert (fair.published.printed, fair.comparable) == ("64.4", True)
    (other,) = compare_with_paper([run(not_comparable=["200 iterations instead of 24000"])])
    assert other.differences == ("200 iterations instead of 24000",)
    assert not compare_with_paper([run()])[0].comparable


def corrupted(
    smoothing, seed, value, source="released folders", cells=MAIN_CORRUPTIONS, severities=SEVERITIES, **changes
):
    entry = {"evaluation": "imagenet-c", "network": "teacher", "metric": "top1", "which": "last"}
    entry["cropped_from"] = "whole images"
    entry |= {"value": value, "num_images": 50_000, "source": {"source": source}, "severities": list(severities)}
    entry |= {"protocol": linear(0.0)["protocol"]}
    entry |= {"cells": dict.fromkeys(cells, [value] * len(severities)), "num_main_cells": len(cells) * len(severities)}
    conditions = IMAGENET | {"smoothing": smoothing} | ({"preserve_probability": 0.0} if smoothing == "tma" else {})
    return RunResults(run=f"{smoothing}{seed}", entries=(entry,), seed=seed, conditions=conditions | changes)


def test_a_mean_over_some_cells_does_not_pass_for_the_mean_over_all_of_imagenet_c():
    def gain(sts, tma):
        return compare_with_paper([corrupted("sts", 0, 48.5, **sts), corrupted("tma", 0, 40.0, **tma)])[-1]

    one = {"severities": (3,)}
    both = gain(one, one)
    assert both.differences == ("15 of 75 cells",)
    assert both.minus_paper == pytest.approx(7.0)
    mixed = gain(one, {})
    assert mixed.differences == ("15 of 75 cells", "other cells than those of the moving average")
    assert "15 of 75 cells" in comparison_table([mixed])
    assert mixed.minus_paper is None
    as_many = gain(one, {"cells": MAIN_CORRUPTIONS[:3]})
    assert "other cells than those of the moving average" in as_many.differences
    assert gain({}, {}).comparable


def test_the_gain_on_imagenet_c_is_taken_seed_by_seed():
    run = corrupted
    found = compare_with_paper([run("sts", 0, 42.0), run("tma", 0, 40.0), run("sts", 1, 51.0), run("tma", 1, 50.0)])
    (gain,) = [c for c in found if c.published.row == "ImageNet-C"]
    assert gain.values == (2.0, 1.0)
    assert gain.comparable
    assert gain.published.value == 1.5
    mixed = compare_with_paper([run("sts", 0, 42.0), run("tma", 0, 40.0, "generated")])[-1]
    assert mixed.differences == (
        "images generated instead of released",
        "other images than those of the moving average",
    )
    assert mixed.minus_paper is None
    for others in ([], [run("tma", 0, 40.0, momentum=0.997)]):  # no moving average of the same m
        found = compare_with_paper([run("sts", 0, 42.0), *others])
        assert not [c for c in found if c.published.row == "ImageNet-C"]
    sweep = [run("sts", 0, 42.0), run("sts", 0, 45.0, preserve_probability=0.9), run("tma", 0, 40.0)]
    gains = [c for c in compare_with_paper(sweep) if c.published.row == "ImageNet-C"]
    assert [(c.values, c.differences) for c in gains] == [
        ((2.0,), ()),
        ((5.0,), ("preserve_probability 0.9 instead of 0.7",)),
    ]


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


@pytest.mark.parametrize("change", [{"protocol": fast_protocol().__dict__}, {"data": {"precision": "bfloat16"}}])
def test_a_gain_on_imagenet_c_is_that_of_equal_probes(change):
    sts, tma = corrupted("sts", 0, 42.0), corrupted("tma", 0, 40.0)
    other = replace(tma, entries=tuple(entry | change for entry in tma.entries))
    assert [c for c in compare_with_paper([sts, tma]) if c.published.row == "ImageNet-C"]
    assert not [c for c in compare_with_paper([sts, other]) if c.published.row == "ImageNet-C"]
    both = replace(tma, entries=(*other.entries, *tma.entries))
    assert compare_with_paper([sts, both])[-1].values == (2.0,)


def test_a_gain_on_other_pixels_of_the_same_names_is_no_gain():
    sts, tma = corrupted("sts", 0, 42.0, "generated"), corrupted("tma", 0, 40.0, "generated")
    other = replace(tma, entries=tuple(e | {"source": {"source": "generated", "seed": 5}} for e in tma.entries))
    assert "other images than those of the moving average" in compare_with_paper([sts, other])[-1].differences


def test_every_row_that_can_be_repeated_is_printed_in_the_paper():
    cells = {(row.table, row.row, column) for row in ROWS for column in row.metrics}
    assert cells <= set(PUBLISHED)
    ours = {key for key in PUBLISHED if key[0].startswith("effect-of")}
    assert ours <= cells


def test_a_comparison_is_one_line_of_text():
    first = compare_with_paper(runs([72.0, 73.0]))[0]
    assert str(first).startswith("effect-of-sts / BYOL STS / top-1: paper 72.7, ours 72.50 ± ")
    with pytest.raises(ConfigError):
        comparison_table([])


def test_a_diverged_training_may_not_stand_beside_the_paper():
    (run,) = runs([72.6])
    for loss, diverged in ((0.5, False), (math.nan, True)):
        known = with_conditions(run, {}, [{"step": 1, "loss": 1.0}, {"step": 2, "loss": loss}])
        differences = compare_with_paper([known])[0].differences
        assert differences == (("the training diverged",) if diverged else ())


def test_a_diverged_probe_may_not_stand_beside_the_paper():
    (first, *_) = compare_with_paper(runs([72.6], diverged=True))
    assert first.differences == ("the linear classifier diverged",)


@pytest.mark.parametrize("fed", ["tensors of side 224", None])
def test_a_probe_fed_centre_crops_where_the_protocol_augments_may_not_stand_beside_the_paper(fed):
    (first, *_) = compare_with_paper(runs([72.6], cropped_from=fed or "unknown images"))
    assert first.differences == (f"random crops of {fed or 'unknown images'} instead of whole images",)


def test_the_best_of_80_may_not_stand_beside_the_best_of_8():
    often = json.loads(json.dumps(byol_protocol(evaluate_every_epochs=1).__dict__))
    (best, *_) = compare_with_paper(runs([72.6], protocol=often))
    (last, *_) = compare_with_paper(runs([72.6], protocol=often, which="last"))
    assert best.differences == ("best of 80 evaluations instead of best of 8 evaluations",)
    assert last.comparable
