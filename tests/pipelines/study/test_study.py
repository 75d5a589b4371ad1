"""The study: what is measured once, what resumes, and verdicts that follow the rule and nothing else."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sts_core import SmoothingConfig
from sts_eval import Features
from sts_pipelines.cli.main import main
from sts_pipelines.study import process_pool, small
from sts_pipelines.study.measure import cross_validated, joined, measure
from sts_pipelines.study.plan import Record, StudyFolders, StudyRun
from sts_pipelines.study.records import append_record, read_records


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


def test_decisive_arms_have_all_seeds_and_every_sts_its_control() -> None:
    study = small.small_study()
    seeds: dict[tuple[str, str], set[int]] = {}
    smoothings: dict[str, set[SmoothingConfig]] = {}
    for run in study.runs:
        seeds.setdefault((run.experiment, run.teacher), set()).add(run.seed)
        smoothings.setdefault(run.experiment, set()).update([run.training.smoothing, *run.training.bank.values()])
    counts = {small.OTHER_SEEDS, small.FIXMATCH_SEEDS, len(small.SEEDS)}
    assert {len(found) for found in seeds.values()} == counts
    assert {teacher for (_, teacher), found in seeds.items() if len(found) == len(small.SEEDS)} == set(small.DECISIVE)
    for configs in smoothings.values():
        for one in configs:
            if one.preserve_probability > 0 and one.momentum > 0:
                assert one.matched_moving_average() in configs


def test_a_study_that_was_stopped_is_balanced() -> None:
    seeds = [run.seed for run in small.small_study().runs]
    assert seeds == sorted(seeds)


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


def test_the_probe_judges_every_image_once_by_probes_that_have_not_seen_it() -> None:
    values = torch.eye(4).repeat(10, 1) * 9
    labels = torch.arange(4).repeat(10)
    assert cross_validated(Features(values, labels), folds=5) == 100.0
    alone = Features(torch.eye(40) * 9, labels)  # nothing that is learnt from one image helps with another
    assert cross_validated(alone, folds=5) < 40.0
    both = joined(Features(values[:30], labels[:30]), Features(values[30:], labels[30:]))
    assert torch.equal(both.values, values)
    assert torch.equal(both.labels, labels)


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
    process_pool.measure_missing(replace(small.small_study((1,)), runs=runs), folders, stream=stream)
    records = read_records(folders.records)
    assert set(records) == {run.key for run in runs}
    assert records[runs[1].key].values == {"linear/teacher": 1.0}
    assert "2 of 2" in stream.getvalue()
    process_pool.measure_missing(replace(small.small_study((1,)), runs=runs), folders, stream=stream)
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
    ("arguments", "message"),
    [
        (["study", "large"], "invalid choice"),
        (["study", "small", "--processes", "0"], "at least 1"),
        (["study", "medium", "--cifar10", "/nowhere.npz"], "is not a file"),
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
