"""Verdicts follow the rule of the plan and nothing else, and the number of seeds follows from the pilot."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sts_pipelines.study import small
from sts_pipelines.study.outcomes import Outcomes, minus, summary
from sts_pipelines.study.pages.report import write_study_report
from sts_pipelines.study.plan import Comparison, Record, Study, StudyRun
from sts_pipelines.study.planning import seconds_by_arm, write_plan
from sts_pipelines.study.power import detectable, needs, power, seeds_needed
from sts_pipelines.study.verdicts import findings, holm, judged, p_values
from tests.pipelines.study.test_study import record_of

BETTER = Comparison(claim="c", paper="", setting="s", difference="a - b", plus=(("e", "a"),), minus=(("e", "b"),))


MEASURED = ("linear/teacher", "linear/student", "corrupted/teacher", "excess/teacher", "top1/teacher", "top1/student")


def invented(study: Study, accuracy: Callable[[StudyRun, str], float]) -> dict[str, Record]:
    """A record for every run, with one accuracy for all measures of a teacher; those of a bank have their own."""
    records = {}
    for run in study.runs:
        value = accuracy(run, run.teacher)
        values = dict.fromkeys(MEASURED, value)
        values |= {f"top1/{name}": accuracy(run, name) for name in run.training.bank}
        records[run.key] = record_of(run, values, [(1.0, 10 ** (value / 100), 1e-4)])
    return records


def noise(run: StudyRun, teacher: str) -> float:
    """What differs between arms of one seed: a tenth of a point."""
    generator = np.random.default_rng([run.seed, *f"{run.experiment} {teacher}".encode()])
    return float(generator.normal(0, 0.1))


def test_differences_are_taken_seed_by_seed() -> None:
    assert minus({1: 90.0, 2: 80.0, 3: 1.0}, {1: 89.0, 2: 79.0}) == {1: 1.0, 2: 1.0}
    found = summary({1: 1.0, 2: 1.0})
    assert found is not None
    assert (found.low, found.high) == (1.0, 1.0)


def test_p_values_are_those_of_the_t_test_and_of_two_one_sided_ones() -> None:
    values = list(np.random.default_rng(0).normal(0.3, 0.8, 20))
    different, within = p_values(values, margin=1.0)
    assert different == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    sides = [stats.ttest_1samp(values, -1.0, alternative="greater"), stats.ttest_1samp(values, 1.0, alternative="less")]
    assert within == pytest.approx(max(side.pvalue for side in sides))


@pytest.mark.parametrize(
    ("values", "expected"), [([1.0], (1.0, 1.0)), ([0.5] * 3, (0.0, 0.0)), ([2.0] * 3, (0.0, 1.0))]
)
def test_p_values_of_one_seed_and_of_equal_ones(values: list[float], expected: tuple[float, float]) -> None:
    assert p_values(values, margin=1.0) == expected


def test_holm_multiplies_by_the_number_of_hypotheses_that_can_still_be_true() -> None:
    assert holm([0.01, 0.04, 0.03], most_true=3) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.01, 0.04, 0.03, 0.9], most_true=2) == pytest.approx([0.02, 0.08, 0.06, 0.9])


def test_holm_keeps_the_chance_of_a_single_wrong_rejection_below_the_level() -> None:
    """Half of the comparisons are equal and half a margin apart, so that one hypothesis of each is true."""
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(400):
        raw, true = [], []
        for place in range(10):
            effects = generator.normal(place % 2, 1.0, 12)
            raw += p_values(list(effects), margin=1.0)
            true += [place % 2 == 0, place % 2 == 1]
        wrong += any(p <= 0.05 for p, is_true in zip(holm(raw, most_true=10), true, strict=True) if is_true)
    assert wrong <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


@pytest.mark.parametrize(
    ("expects", "mean", "different", "within", "verdict"),
    [
        ("greater", 2.0, 0.01, 0.9, "holds"),
        ("greater", -2.0, 0.01, 0.9, "does not hold"),
        ("greater", -0.2, 0.01, 0.01, "does not hold"),
        ("greater", 0.1, 0.5, 0.01, "equivalent within the margin"),
        ("greater", 0.9, 0.06, 0.06, "cannot be told"),
        ("comparable", 0.3, 0.01, 0.01, "holds"),
        ("comparable", 0.1, 0.5, 0.01, "holds"),
        ("comparable", -2.0, 0.01, 0.9, "does not hold"),
        ("comparable", 0.9, 0.06, 0.06, "cannot be told"),
    ],
)
def test_a_verdict_follows_from_two_tests(
    expects: str, mean: float, different: float, within: float, verdict: str
) -> None:
    assert judged(replace(BETTER, expects=expects), mean, different, within) == verdict  # type: ignore[arg-type]


def test_power_is_what_a_simulation_finds() -> None:
    generator, level = np.random.default_rng(0), 0.01
    equal, apart = (generator.normal(mean, 1.2, (2000, 30)) for mean in (0.0, 1.0))
    equivalent = np.mean([p_values(list(row), 1.0)[1] <= level for row in equal])
    different = np.mean([p_values(list(row), 1.0)[0] <= level for row in apart])
    assert power(30, 1.2, 1.0, level) == pytest.approx(min(equivalent, different), abs=0.03)


def test_the_seeds_needed_are_the_fewest_with_nine_tenths_of_power() -> None:
    needed = seeds_needed(1.2, 1.0, 0.01)
    assert power(needed, 1.2, 1.0, 0.01) >= 0.9 > power(needed - 1, 1.2, 1.0, 0.01)


def test_a_difference_is_detectable_if_the_t_test_finds_it_in_nine_of_ten_studies() -> None:
    smallest = detectable(20, 1.5, 0.01)
    effects = np.random.default_rng(0).normal(smallest, 1.5, (2000, 20))
    assert np.mean([p_values(list(row), 1.0)[0] <= 0.01 for row in effects]) == pytest.approx(0.9, abs=0.02)


def test_a_teacher_that_is_better_on_every_seed_makes_its_claims_hold(tmp_path: Path) -> None:
    study = small.small_study(tuple(range(10)))
    bonus = {"sts": 5.0, "untrained": -9.0, "none": -20.0}
    # Accuracies differ far more between seeds than between teachers of a seed.
    records = invented(study, lambda run, name: 60.0 + 5 * run.seed + bonus.get(name, 0.0) + noise(run, name))
    found = {(f.comparison.claim, f.comparison.setting): f for f in findings(study, Outcomes(study, records))}
    assert found["STS is better than TMA", "BYOL"].verdict == "holds"
    assert found["STS is better than TMA", "BYOL"].effect.mean == pytest.approx(5.0, abs=0.2)
    assert found["Without smoothing training fails: no better than no training", "MoCo"].verdict == "holds"
    assert found["Fine-grained SE is comparable with TMA", "BYOL"].verdict == "holds"
    assert found["SE improves with finer granularity", "BYOL"].verdict == "equivalent within the margin"
    assert found["Few labels gain most", "FixMatch"].verdict == "equivalent within the margin"
    assert "wrote" in write_study_report(study, records, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| STS is better than TMA | +0.9 | BYOL | STS - TMA | +" in text
    for figure in re.findall(r"\((forest-.*?svg)\)", text):
        assert (tmp_path / figure).stat().st_size < 10_000


def test_before_the_last_seed_nothing_is_called_a_verdict(tmp_path: Path) -> None:
    study = small.small_study(tuple(range(10)))
    records = invented(study, lambda run, name: 60.0 + 5 * (name == "sts") + noise(run, name))
    some = {run.key: records[run.key] for run in study.runs if run.seed != 9}
    assert {found.verdict for found in findings(study, Outcomes(study, some))} == {"interim"}
    write_study_report(study, some, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "interim: 27. **Interim**" in text
    assert "| 9 of 10 |" in text
    assert "| holds" not in text


def test_a_plan_names_its_seeds_its_power_and_its_hours(tmp_path: Path) -> None:
    study, pilot = small.small_study(tuple(range(10, 14))), small.small_study((1, 2, 3))
    records = invented(pilot, lambda run, name: 60.0 + 4 * noise(run, name))
    write_plan(study, records, tmp_path)
    text = (tmp_path / "plan.md").read_text()
    assert "1 to 3 (`pilot.jsonl`" in text
    assert "10 to 13" in text
    assert all(need.comparison.claim in text for need in needs(study, Outcomes(pilot, records)))
    assert set(seconds_by_arm(study, records).values()) == {3600.0}, "as each invented record"
    assert "Its 68 trainings take 68.0 CPU hours" in text


def test_the_deviation_of_a_comparison_is_pooled_over_its_method() -> None:
    study = small.small_study((1, 2, 3))
    records = invented(study, lambda run, name: 60.0 + noise(run, name))
    found: Mapping[Comparison, float] = {n.comparison: n.deviation for n in needs(study, Outcomes(study, records))}
    byol = [value for c, value in found.items() if c.setting == "BYOL" and c.measure == "linear/teacher"]
    assert len(set(byol)) == 3, "one for all trained arms, and one each for the two with an untrained network"
    assert all(0.02 < value < 0.5 for value in byol)
