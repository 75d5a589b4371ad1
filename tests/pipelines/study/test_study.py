"""The study: what is measured once, what resumes, and verdicts that follow the rule and nothing else."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sts_core import SmoothingConfig
from sts_eval import published_rows
from sts_eval.intervals import Estimate, estimate
from sts_pipelines.cli.main import main
from sts_pipelines.study import process_pool, small
from sts_pipelines.study.claims import best_probabilities, comparable, findings, sided
from sts_pipelines.study.measure import measure
from sts_pipelines.study.outcomes import Outcomes, minus, summary
from sts_pipelines.study.plan import Record, Study, StudyFolders, StudyRun
from sts_pipelines.study.records import append_record, read_records
from sts_pipelines.study.report import write_study_report
from sts_pipelines.study.tables import timing_table
from sts_pipelines.study.timing import TimedNetwork, plain_update_, ratios, time_network


def record_of(run: StudyRun, values: Mapping[str, float], drift: Sequence[Sequence[float]] = ()) -> Record:
    return Record(
        key=run.key,
        experiment=run.experiment,
        teacher=run.teacher,
        seed=run.seed,
        smoothing={},
        values=values,
        drift=drift,
        cpu_seconds=3600.0,
    )


def invented(study: Study, accuracy: Callable[[StudyRun], float]) -> dict[str, Record]:
    """A record for every run, with one accuracy for all measures; teachers of a bank get it too."""
    records = {}
    for run in study.runs:
        value = accuracy(run)
        names = [f"{kind}/{who}" for kind in ("linear", "knn", "corrupted", "width") for who in ("teacher", "student")]
        names += ["top1/teacher", "top1/student", *(f"top1/{name}" for name in run.training.bank)]
        if run.key in records:
            continue  # two experiments share it, and the first has named it
        records[run.key] = record_of(run, dict.fromkeys(names, value), [(1.0, 1e-3, 1e-4), (2.0, 1e-4, 1e-4)])
    return records


def tiny_run(seed: int = 1, m: float = 0.9) -> StudyRun:
    data = replace(small.DIGITS_BYOL, image_size=8)
    training = small.byol(data, small.teacher(m, 0.0), seed=seed, steps=2, lr=0.1)
    training = replace(training, track_drift=False)  # two steps are less than an epoch
    return StudyRun(experiment="byol-digits", teacher="tma", training=training)


def test_the_key_of_a_run_changes_with_teacher_seed_and_images_and_not_with_paths() -> None:
    run = tiny_run()
    moved = replace(run, training=replace(run.training, data=replace(run.training.data, root="elsewhere")))
    assert moved.key == run.key
    others = [tiny_run(seed=2), tiny_run(m=0.8), replace(run, data_digest="1"), replace(run, corruptions=10)]
    assert len({run.key, *(other.key for other in others)}) == 5


def test_every_comparison_has_at_least_five_seeds_and_every_sts_its_control() -> None:
    study = small.small_study()
    seeds: dict[tuple[str, str], set[int]] = {}
    smoothings: dict[str, set[SmoothingConfig]] = {}
    for run in study.runs:
        seeds.setdefault((run.experiment, run.teacher), set()).add(run.seed)
        smoothings.setdefault(run.experiment, set()).update([run.training.smoothing, *run.training.bank.values()])
    grid = {key: found for key, found in seeds.items() if key[0] == "byol-digits-grid"}
    assert all(len(found) >= 5 for key, found in seeds.items() if key not in grid)
    assert all(len(found) >= 3 for found in grid.values())
    for experiment in smoothings.keys() - {"byol-digits-grid"}:
        for one in smoothings[experiment]:
            if one.preserve_probability > 0 and one.momentum > 0:
                assert one.matched_moving_average() in smoothings[experiment]


def test_cells_of_the_grid_that_are_other_experiments_too_are_measured_once() -> None:
    study = small.small_study()
    keys = [run.key for run in study.runs]
    assert len(set(keys)) < len(keys)
    assert len(study.missing({})) == len(set(keys))


def test_a_record_survives_the_disk_and_a_torn_line_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first, second = (record_of(tiny_run(seed=seed), {"linear/teacher": 90.123456789}) for seed in (1, 2))
    append_record(path, first)
    with path.open("a") as file:
        file.write('{"key": "torn", "exper')
    append_record(path, second)
    assert set(read_records(path)) == {first.key, second.key}
    assert read_records(path)[first.key].values["linear/teacher"] == pytest.approx(90.1235)


def test_a_run_is_measured_on_both_networks_and_repeats_to_the_bit(tmp_path: Path) -> None:
    first, again = (measure(tiny_run(), work=tmp_path, revision="r") for _ in range(2))
    both = {f"{kind}/{who}" for kind in ("linear", "knn", "width") for who in ("teacher", "student")}
    assert set(first.values) == both | {"loss", "effective_rank"}
    assert first.values == again.values
    assert 10 < first.values["linear/teacher"] < 100
    assert not list(tmp_path.iterdir()), "the run folder is temporary"


def test_a_student_that_labels_itself_gives_all_teachers_of_its_bank_in_one_run(tmp_path: Path) -> None:
    data = replace(small.DIGITS_FIXMATCH, num_labels=20)
    bank = small.fixmatch(data, small.fixmatch_teachers()["tma"], seed=1, steps=3)
    record = measure(StudyRun(experiment="e", teacher="bank", training=bank), work=tmp_path, revision="")
    accuracies = {name for name in record.values if name.startswith("top1/")}
    assert accuracies == {"top1/teacher", "top1/student", *(f"top1/{n}" for n in small.fixmatch_teachers())}
    assert record.values["top1/none"] == record.values["top1/student"]
    assert record.values["top1/tma"] == record.values["top1/teacher"]


def test_a_loss_that_is_not_finite_is_recorded_as_a_failure(tmp_path: Path) -> None:
    run = tiny_run()
    wild = replace(run.training, optimizer=replace(run.training.optimizer, lr=1e30, warmup_epochs=0.0), steps=4)
    record = measure(replace(run, training=wild), work=tmp_path, revision="")
    assert record.failed
    assert not record.values


def test_a_stopped_study_measures_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [tiny_run(seed=seed) for seed in (1, 2, 3)]
    folders = StudyFolders(output=tmp_path / "out", work=tmp_path / "work")
    append_record(folders.records, record_of(runs[1], {"linear/teacher": 1.0}))
    monkeypatch.setattr(process_pool, "ProcessPoolExecutor", InThisProcess)
    stream = io.StringIO()
    process_pool.measure_missing(Study(name="s", runs=runs), folders, stream=stream)
    records = read_records(folders.records)
    assert set(records) == {run.key for run in runs}
    assert records[runs[1].key].values == {"linear/teacher": 1.0}
    assert "2 of 2" in stream.getvalue()
    process_pool.measure_missing(Study(name="s", runs=runs), folders, stream=stream)
    assert len(folders.records.read_text().splitlines()) == 3


class InThisProcess:
    """An executor without processes: starting one takes seconds."""

    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> "InThisProcess":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., object], *arguments: object) -> object:
        from concurrent.futures import Future

        future: Future[object] = Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([1.0, 1.2, 0.9, 1.1, 1.0], "holds"),
        ([-1.0, -1.2, -0.9, -1.1, -1.0], "does not hold"),
        ([3.0, -2.0, 1.0, -1.0, 2.0], "cannot be told at this size"),
        ([1.0, 1.01], "cannot be told at this size"),
        ([1.0], "cannot be told at this size"),
    ],
)
def test_a_verdict_needs_an_interval_on_one_side_of_zero_and_three_seeds(values: list[float], verdict: str) -> None:
    assert sided(estimate(values)) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.5, 0.9, "holds"),
        (-0.5, 1.5, "cannot be told at this size"),
        (1.1, 2.0, "does not hold"),
        (-3.0, -1.2, "does not hold"),
    ],
)
def test_comparable_means_within_a_point(low: float, high: float, verdict: str) -> None:
    assert comparable(Estimate((low + high) / 2, low, high, 5)) == verdict


def test_differences_are_taken_seed_by_seed() -> None:
    assert minus({1: 90.0, 2: 80.0, 3: 1.0}, {1: 89.0, 2: 79.0}) == {1: 1.0, 2: 1.0}
    found = summary({1: 1.0, 2: 1.0})
    assert found is not None
    assert (found.low, found.high) == (1.0, 1.0)


def test_a_teacher_that_is_better_on_every_seed_makes_its_claims_hold(tmp_path: Path) -> None:
    study = small.small_study()
    # Better by five points and a little that differs by seed; accuracies differ far more between seeds.
    bonus = {"sts": 5.0, "untrained": -9.0, "none": -20.0}
    records = invented(study, lambda run: 60.0 + 5 * run.seed + bonus.get(run.teacher, 0.0) + 0.01 * (run.seed % 2))
    found = {(f.claim, f.setting, f.comparison): f for f in findings(Outcomes(study, records))}
    better = found["STS is better than TMA", "BYOL, digits", "STS - TMA"]
    assert better.verdict == "holds"
    assert better.effect.mean == pytest.approx(5.0)
    fails = [f for f in found.values() if f.claim.startswith("Without smoothing") and f.setting == "BYOL, digits"]
    assert [f.verdict for f in fails] == ["holds"]
    even = found["STS is better than TMA with few labels", "FixMatch, digits, 20 labels", "STS - TMA"]
    assert even.verdict == "cannot be told at this size"
    assert "wrote" in write_study_report(study, records, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| STS is better than TMA | BYOL +0.9 | BYOL, digits | STS - TMA | +5.00 [" in text
    assert (tmp_path / "sts-gain.svg").is_file()
    assert (tmp_path / "p-by-m.svg").is_file()


def test_the_best_p_is_found_per_seed_and_momentum() -> None:
    study = small.small_study()
    best = dict(zip(small.GRID_MOMENTA, reversed(small.GRID_PROBABILITIES), strict=False))

    def accuracy(run: StudyRun) -> float:
        smoothing = run.training.smoothing
        return 90.0 if best.get(smoothing.momentum) == smoothing.preserve_probability else 50.0 + run.seed

    outcomes = Outcomes(study, invented(study, accuracy))
    assert best_probabilities(outcomes) == dict.fromkeys(small.SEEDS, best)
    falls = [f for f in findings(outcomes) if f.claim.startswith("The best p falls")]
    assert [f.verdict for f in falls] == ["holds"]


def test_a_report_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    study = small.small_study()
    records = invented(study, lambda run: 50.0 + run.seed)
    write_study_report(study, records, tmp_path)
    path = tmp_path / "README.md"
    path.write_text(path.read_text().replace("anew -->\n", "anew -->\nRead me.\n", 1))
    write_study_report(study, records, tmp_path)
    assert "Read me." in path.read_text()


def test_cifar_is_cut_to_a_part_whose_digest_depends_on_the_images_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "CIFAR_TRAIN", 6)
    monkeypatch.setattr(small, "CIFAR_TEST", 4)
    images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(10)
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    np.savez_compressed(tmp_path / "b.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    path, digest = small.cifar_part(tmp_path / "a.npz", tmp_path)
    assert small.cifar_part(tmp_path / "b.npz", tmp_path) == (path, digest)
    with np.load(path) as part:
        assert {name: len(part[name]) for name in part.files} == {"x_train": 6, "y_train": 6, "x_test": 4, "y_test": 4}
    monkeypatch.setattr(small, "CIFAR_TRAIN", 11)
    with pytest.raises(ValueError, match="--cifar10 needs"):
        small.cifar_part(tmp_path / "a.npz", tmp_path)


@pytest.mark.parametrize("granularity", ["layer", "channel", "neuron"])
def test_the_pseudo_code_obeys_the_update_rule(granularity: str) -> None:
    student, start = torch.full((40, 30), 3.0), torch.ones(40, 30)
    teacher = start.clone()
    plain_update_(teacher, student, m=0.5, p=0.0, granularity=granularity)  # type: ignore[arg-type]
    assert torch.equal(teacher, torch.full((40, 30), 2.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        moved = start.clone()
        plain_update_(moved, student, m=0.0, p=0.5, granularity=granularity)  # type: ignore[arg-type]
    share = (moved == 3.0).float()
    expected = {"layer": {0.0, 1.0}, "channel": None, "neuron": None}[granularity]
    assert (float(share.mean()) in expected) if expected else 0.2 < float(share.mean()) < 0.8
    if granularity == "channel":
        assert torch.equal(share.amin(1), share.amax(1))


def test_steps_of_both_implementations_are_timed_in_turns() -> None:
    network = TimedNetwork(label="tiny", backbone="test_resnet", batch_size=2, rounds=2, hidden_dim=8)
    times = time_network(network)
    for implementation in ("ours", "pseudo-code"):
        cases = times[implementation]
        assert isinstance(cases, dict)
        assert set(cases) == set(published_rows("granularity"))
        assert all(len(case["step"]) == len(case["update"]) == 2 for case in cases.values())
        assert ratios(cases, "TMA") == (1.0, 1.0, 1.0)
    assert timing_table([json.loads(json.dumps(times))]).count("\n") == len(published_rows("granularity")) + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["study", "large"], "invalid choice"),
        (["study", "small", "--processes", "0"], "at least 1"),
        (["study", "small", "--cifar10", "/nowhere.npz"], "is not a file"),
        (["study", "small", "--report-only"], "no results yet"),
    ],
)
def test_a_mistyped_study_ends_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
