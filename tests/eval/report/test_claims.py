"""What a report may not suggest: each test is a number that once looked better than it was."""

import json
import re
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from sts_eval import add_entries, fast_protocol
from sts_eval.intervals import difference
from sts_eval.report.blocks import Figure, Notes, Table
from sts_eval.report.build import build_report
from sts_eval.report.html import to_html
from sts_eval.report.markdown import to_markdown
from sts_eval.report.runs import read_runs
from tests.eval.report.conftest import MakeRun, changed

LINEAR: dict[str, Any] = {"evaluation": "linear", "network": "teacher", "metric": "top1", "which": "last"}


def markdown_of(*folders: Path) -> str:
    return to_markdown(build_report(read_runs(folders)))


@pytest.mark.parametrize(
    ("selected_on", "said"),
    [
        ("test", "chosen on the test labels (optimistic)"),
        ("held-out", "chosen on 10 % of the training images"),
        ("single", None),
    ],
)
def test_a_report_says_how_the_penalty_was_chosen(make_run: MakeRun, selected_on: str, said: str | None) -> None:
    folder = make_run("run", top1=None, metrics=False)
    add_entries(folder, [LINEAR | {"value": 80.0, "protocol": asdict(fast_protocol()), "selected_on": selected_on}])
    text = markdown_of(folder)
    assert ("chosen on" in text) == (said is not None)
    assert "| protocol |" not in text  # which is the same in all rows
    if said is not None:
        assert f"In percent: L-BFGS, {said}." in text


def test_a_report_shows_networks_that_are_neither_teacher_nor_student(make_run: MakeRun) -> None:
    folder = make_run("mine", top1=None, metrics=False)
    add_entries(folder, [LINEAR | {"network": "backbone", "value": 81.25}])
    report = build_report(read_runs([folder]))
    assert [section.anchor for section in report.sections] == ["runs", "results"]
    assert any("81.25" in fact.value and "backbone" in fact.detail for fact in report.facts)
    assert "backbone top-1, last" in to_markdown(report)


def test_three_copies_of_one_seed_are_one_seed(make_run: MakeRun) -> None:
    for copy in range(3):
        make_run(f"sts-{copy}", m=0.99, p=0.7, top1=88.02, metrics=False)
    control = make_run("tma", m=0.997, top1=88.0, metrics=False)
    text = markdown_of(control.parent)
    assert "88.02 (one seed)" in text
    assert "3 seeds" not in text


def test_five_detection_trials_are_five_entries_and_their_spread_is_shown(make_run: MakeRun) -> None:
    folder = make_run("run", top1=None, metrics=False)
    entry = {"evaluation": "voc", "network": "teacher", "metric": "AP50", "which": "last", "backend": "torchvision"}
    for seed in range(5):
        results = add_entries(folder, [entry | {"seed": seed, "value": 80.0 + seed}])
    assert [found["value"] for found in results.entries] == [84.0, 83.0, 82.0, 81.0, 80.0]
    assert "82.00 ± 1.96 (5 seeds)" in markdown_of(folder)


def test_trials_that_a_pipeline_averaged_show_their_spread(make_run: MakeRun) -> None:
    folder = make_run("run", top1=None, metrics=False)
    entry = {"evaluation": "voc", "network": "teacher", "metric": "AP50", "which": "last", "backend": "torchvision"}
    add_entries(folder, [entry | {"value": 82.0, "trials": [80.0, 81.0, 82.0, 83.0, 84.0]}])
    assert "82.00 ± 1.96 (5 seeds)" in markdown_of(folder)


def test_the_highest_mean_leads_and_not_the_luckiest_run(make_run: MakeRun) -> None:
    for seed, value in enumerate((60.0, 80.0)):
        make_run(f"lucky-{seed}", m=0.9, seed=seed, top1=value, metrics=False)
    for seed, value in enumerate((74.0, 75.0)):
        folder = make_run(f"steady-{seed}", m=0.99, seed=seed, top1=value, metrics=False)
    report = build_report(read_runs([folder.parent]))
    assert report.facts[1].value.startswith("74.50 ±")
    assert "TMA m 0.99 (2 seeds)" in report.facts[1].detail
    assert "[" in report.facts[2].value  # the interval of the difference


def test_one_seed_is_no_conclusion_and_has_no_colour(make_run: MakeRun) -> None:
    make_run("sts", m=0.99, p=0.7, top1=73.0, metrics=False)
    folder = make_run("tma", m=0.997, top1=70.0, metrics=False)
    report = build_report(read_runs([folder.parent]), against_paper=False)
    assert "+3.00 (one seed: no conclusion)" in to_markdown(report)
    assert 'class="gain"' not in to_html(report)


def test_a_difference_over_seeds_has_an_interval_and_is_coloured_where_it_excludes_zero(make_run: MakeRun) -> None:
    for seed, shift in enumerate((0.0, 5.0, 10.0)):  # paired: seeds vary more than the difference
        make_run(f"sts-{seed}", m=0.99, p=0.7, seed=seed, top1=73.0 + shift + 0.1 * seed, metrics=False)
        folder = make_run(f"tma-{seed}", m=0.997, seed=seed, top1=70.0 + shift, metrics=False)
    report = build_report(read_runs([folder.parent]), against_paper=False)
    assert '<span class="gain">+3.10 [+2.85, +3.35]</span>' in to_html(report)


def test_an_sts_run_without_its_control_is_named_with_the_command_that_makes_it(make_run: MakeRun) -> None:
    folder = make_run("sts", m=0.99, p=0.7, metrics=False)
    assert "train it again with momentum 0.997 and preserve\\_probability 0" in markdown_of(folder)
    changed(folder, control="sts run {folder}/config.yaml --m {momentum}")
    assert f"sts run {folder}/config.yaml --m 0.997" in markdown_of(folder).replace("\\", "")


def test_differences_are_paired_by_seed_or_welchs() -> None:
    paired = difference({0: 1.0, 1: 2.0, 2: 4.0}, {0: 0.5, 1: 1.5, 2: 3.0})
    assert (paired.mean, paired.count) == (pytest.approx(2 / 3), 3)
    first, second = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4]
    welch = difference(dict(enumerate(first)), {f"other {i}": value for i, value in enumerate(second)})
    expected = scipy.stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert welch.mean == pytest.approx(sum(first) / 6 - sum(second) / 4)
    low, high = welch.low or 0.0, welch.high or 0.0
    assert low <= expected.low < expected.high <= high  # degrees of freedom rounded down: a little wider
    assert high - low < 1.05 * (expected.high - expected.low)
    assert difference({0: 1.0}, {0: 0.5}).low is None


def corrupted(make_run: MakeRun, name: str, shift: float, source: dict[str, Any], **settings: Any) -> Path:
    folder = make_run(name, shift=shift, metrics=False, **settings)
    file = folder / "results.json"
    results = json.loads(file.read_text())
    results["entries"][-1] |= {"source": source, "num_classes": 10 if source["source"] == "generated" else 1000}
    file.write_text(json.dumps(results))
    return changed(folder, data={"dataset": "cifar10" if source["source"] == "generated" else "imagenet"})


def test_generated_corruptions_of_another_dataset_are_not_called_imagenet_c(make_run: MakeRun) -> None:
    runs = [corrupted(make_run, name, p / 20, {"source": "generated"}, p=p) for name, p in (("tma", 0.0), ("sts", 0.7))]
    report = build_report(read_runs(runs))
    (section,) = [section for section in report.sections if section.anchor == "corruptions"]
    text = to_markdown(replace(report, sections=[section]))
    assert section.title == "Corrupted images"
    assert "cifar10, generated, 40 images" in text
    assert "The paper, for BYOL on ImageNet" not in text
    released = [corrupted(make_run, "real", 0.0, {"source": "released folders"})]
    assert "ImageNet-C, released, 40 images" in markdown_of(*released)


def test_corruptions_are_compared_with_the_moving_averages_of_the_same_recipe(make_run: MakeRun) -> None:
    other = corrupted(make_run, "other", 0.0, {"source": "generated"}, m=0.99)
    changed(other, recipe="another")
    make = partial(corrupted, make_run, source={"source": "generated"})
    sts = make("sts", 0.05, m=0.99, p=0.7)
    alone = markdown_of(other, sts)
    assert "minus" not in alone
    assert "Without a moving average of the same recipe: sts." in alone
    text = markdown_of(other, sts, make("tma", 0.0, m=0.99), make("matched", 0.02, m=0.997))
    assert "sts minus tma" in text
    assert "sts minus matched" in text
    assert "minus other" not in text


def test_a_digits_run_stands_in_no_table_of_imagenet(make_run: MakeRun) -> None:
    small = {"dataset": "digits", "image_size": 12}
    text = markdown_of(changed(make_run("small", m=0.99, p=0.7, metrics=False), data=small, conditions=small))
    assert "ImageNet, 200 epochs" not in text
    assert "Other data than the paper's, so that no number of it stands beside them: small." in text


@pytest.mark.parametrize(
    "conditions", [{"dataset": "digits"}, {"method": "moco"}, {"epochs": None, "steps": 110}, {"epochs": 1000}]
)
def test_the_cost_of_granularity_stands_beside_the_papers_for_its_own_training_alone(
    conditions: dict[str, Any], family: Path
) -> None:
    text = markdown_of(family)
    assert "| time, paper |" in text
    assert "BYOL on ImageNet, 200 epochs" in text
    for folder in family.iterdir():
        changed(folder, conditions=conditions, data={"dataset": conditions.get("dataset", "imagenet")})
    text = markdown_of(family)
    assert "Cost of granularity" in text
    assert "| time, paper |" not in text
    assert "BYOL on ImageNet, 200 epochs" not in text


def test_the_cost_of_granularity_is_counted_from_the_average_of_the_same_recipe(make_run: MakeRun) -> None:
    changed(make_run("another", m=0.99, speed=1000.0), recipe="another")
    make_run("tma", m=0.99, speed=100.0)
    for granularity, speed in (("layer", 100.0), ("neuron", 50.0)):
        folder = make_run(granularity, m=0.99, p=0.7, granularity=granularity, speed=speed)
    text = markdown_of(folder.parent)
    assert re.search(r"\(NW\) \| `neuron` \| 50 \| 2\.00\S \|", text)
    assert "`another` | 1000" not in text


def test_a_short_run_is_matched_with_no_row_of_300_or_1000_epochs(make_run: MakeRun) -> None:
    short = changed(make_run("short", m=0.99, p=0.7, metrics=False), conditions={"epochs": None, "steps": 110})
    assert "Self-supervised methods on ImageNet" not in markdown_of(short)
    long = changed(make_run("long", m=0.99, p=0.7, metrics=False), conditions={"epochs": 300})
    assert "Ours (BYOL + STS) 300" in markdown_of(long)


def test_the_verdict_is_the_second_column_and_footnotes_do_not_repeat(make_run: MakeRun) -> None:
    report = build_report(read_runs([make_run("sts", m=0.99, p=0.7, metrics=False)]))
    (section,) = [section for section in report.sections if section.anchor == "paper"]
    tables = [block for block in section.blocks if isinstance(block, Table)]
    assert len(tables) == 2
    assert {table.header[1] for table in tables} == {"may stand"}
    (notes,) = [block for block in section.blocks if isinstance(block, Notes)]
    assert len({text for _, text in notes.items}) == len(notes.items) > 0


def test_a_run_has_one_colour_in_all_figures_and_schedules_are_not_drawn(make_run: MakeRun) -> None:
    first = make_run("first", m=0.0, drift=False)
    second = make_run("second", m=0.9)
    lines = [{"step": s, "loss": 1.0, "momentum": 0.9, "learning_rate": 0.1, "num_updates": s} for s in range(1, 5)]
    (first / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = build_report(read_runs([first, second]))
    figures = [block for section in report.sections for block in section.blocks if isinstance(block, Figure)]
    colours = {(entry.name, entry.colour) for figure in figures for entry in figure.legend}
    assert colours == {("first", 1), ("second", 2)}
    headings = {heading for figure in figures for heading, _ in figure.drawings}
    assert "loss" in headings
    assert not headings & {"momentum", "learning rate", "num updates"}
