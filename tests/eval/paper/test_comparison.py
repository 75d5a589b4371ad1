import json
import math
from dataclasses import replace

import pytest
import scipy.stats

from sts_core.errors import ConfigError
from sts_eval import RunResults, byol_protocol, compare_with_paper, comparison_table, fast_protocol
from sts_eval.corruptions.benchmark import MAIN_CORRUPTIONS, SEVERITIES
from sts_eval.paper.comparison import with_conditions
from tests.eval.paper.recorded import IMAGENET, linear, runs


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
        ({"reduced_precision": "bfloat16"}, {}, "reduced_precision bfloat16 instead of none"),
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
