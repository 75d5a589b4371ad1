"""Which numbers a run folder shows: those of the settings asked for, measured once, resumed when killed."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sts_core import ConfigError, StsError
from sts_eval import CorruptionResult, DataError, GeneratedCorruptions, read_results, write_results
from sts_eval.features.images import AugmentedSamples
from sts_eval.probes.linear.training import SAMPLE_ROWS
from sts_methods import CheckpointError, CheckpointStore
from sts_methods.data.config import DataConfig
from sts_pipelines.cli.main import main
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation import corruptions, evaluator
from sts_pipelines.evaluation.records import voc
from sts_pipelines.evaluation.records.few_labels import readable_checkpoints
from sts_pipelines.evaluation.settings import is_evaluated, settings_of
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of
from sts_pipelines.terminal import value_of

Tiny = Callable[..., PipelineConfig]


def trained(tiny: Tiny, *asked: str) -> Path:
    pipeline = tiny("byol-digits-tma", steps=1)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=asked, networks=("teacher",)))
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    return pipeline.folder


def top1(folder: Path) -> float | None:
    return value_of(read_results(folder).entries, "knn/teacher/top1")


@pytest.mark.slow
def test_numbers_of_other_data_or_another_precision_are_not_taken_for_those_asked_for(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(tiny, "knn")
    elsewhere = ["--data.dataset", "arrays", "--data.root", "/nowhere/digits.npz"]
    assert main(["evaluate", str(folder), *elsewhere]) == 2
    assert "/nowhere/digits.npz" in capsys.readouterr().err
    before = read_results(folder).entries
    assert main(["evaluate", str(folder), "--evaluation.features.precision", "bfloat16"]) == 0
    assert main(["evaluate", str(folder), "--data.image-size", "16"]) == 0
    entries = read_results(folder).entries
    assert len({entry["settings"] for entry in entries}) == 3
    assert [entry["data"]["image_size"] for entry in entries[: len(before)]] == [16] * len(before)
    assert [entry["data"]["precision"] for entry in entries].count("bfloat16") == len(before)
    assert main(["evaluate", str(folder)]) == 0
    assert read_results(folder).entries[: len(before)] == before


@pytest.mark.slow
def test_a_measurement_with_fewer_settings_does_not_break_up_the_one_before(tiny: Tiny) -> None:
    folder = trained(tiny)
    for ks in ("20,1", "20", "20,1"):
        assert main(["evaluate", str(folder), "--only", "knn", "--evaluation.knn.ks", ks]) == 0
        assert read_results(folder).entries[0]["k"] == 20


@pytest.mark.slow
def test_a_probe_by_sgd_on_other_data_or_in_another_precision_neither_stops_nor_resumes_with_the_first(
    tiny: Tiny,
) -> None:
    folder = trained(tiny)
    linear = ["--evaluation.linear.solver", "sgd", "--evaluation.linear.epochs", "2"]
    evaluate = ["evaluate", str(folder), "--only", "linear", *linear, "--evaluation.linear.learning-rates", "0.3"]
    for other in ([], ["--evaluation.features.precision", "bfloat16"], ["--data.image-size", "16"]):
        assert main([*evaluate, *other]) == 0
    assert len(list(folder.glob(".linear-teacher-*.pt"))) == 3
    assert len({entry["settings"] for entry in read_results(folder).entries}) == 3


@pytest.mark.slow
def test_random_crops_are_made_once_for_all_networks(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tiny)
    crop, num_crops = AugmentedSamples.__getitem__, Counter[int]()

    def counted(self: AugmentedSamples, index: int) -> Any:
        num_crops[index] += 1
        return crop(self, index)

    monkeypatch.setattr(AugmentedSamples, "__getitem__", counted)
    once = {"solver": "sgd", "epochs": "1", "augment": "true", "held-out-fraction": "0", "learning-rates": "0.3"}
    linear = [word for name, value in once.items() for word in (f"--evaluation.linear.{name}", value)]
    networks = ["--evaluation.networks", "teacher,student,untrained"]
    assert main(["evaluate", str(folder), "--only", "linear", *linear, *networks]) == 0
    assert {entry["network"] for entry in read_results(folder).entries} == {"teacher", "student", "untrained"}
    looks = 3 * (1 + SAMPLE_ROWS)  # by which a network and its state file know the images
    assert 1438 <= num_crops.total() <= 1438 + looks


@pytest.mark.slow
def test_outcomes_on_corruptions_belong_to_one_setting(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        corruptions, "cells_of", lambda source: [("contrast", severity) for severity in source.severities]
    )
    folder = trained(tiny)
    for severities in ("1", "2,3"):
        assert main(["evaluate", str(folder), "--only", "imagenet-c", "--evaluation.severities", severities]) == 0
    entries = read_results(folder).entries
    assert [entry["severities"] for entry in entries] == [[2, 3], [1]]
    assert len({entry["outcomes"] for entry in entries}) == 2
    for entry in entries:
        CorruptionResult.from_json(entry).with_outcomes(folder / entry["outcomes"])
        assert entry["protocol"]["solver"] == "lbfgs"


@pytest.mark.slow
def test_drift_belongs_to_the_runs_teacher_and_is_written_after_a_kill(tiny: Tiny) -> None:
    pipeline = tiny("byol-digits-tma", steps=None, epochs=1, track_drift=True)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("knn",)))
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    entries = read_results(pipeline.folder).entries
    assert is_evaluated(pipeline.folder, pipeline)
    kept = tuple(entry for entry in entries if entry["evaluation"] != "drift")
    assert len(kept) < len(entries)
    write_results(pipeline.folder, replace(read_results(pipeline.folder), entries=kept))  # killed before it was added
    assert not is_evaluated(pipeline.folder, pipeline)
    (pipeline.folder / "bank").mkdir()
    shutil.copy(pipeline.folder / "teacher.safetensors", pipeline.folder / "bank" / "one.safetensors")
    shutil.copy(pipeline.folder / "teacher.json", pipeline.folder / "bank" / "one.json")
    results = pipeline.folder.parent / "one"
    evaluator.evaluate_run(pipeline.folder, pipeline, device=torch.device("cpu"), teacher="one", results=results)
    assert {entry["evaluation"] for entry in read_results(results).entries} == {"knn"}


@pytest.mark.slow
def test_a_damaged_older_checkpoint_is_left_out_and_a_damaged_last_one_is_an_error(tiny: Tiny) -> None:
    pipeline = tiny("fixmatch-digits-tma", steps=6)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=()))
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    store = CheckpointStore(pipeline.folder / "checkpoints")
    assert store.steps() == [2, 4, 6]
    (store.path(2) / "state.pt").write_bytes(b"torn")
    with pytest.warns(UserWarning, match="skipped a damaged checkpoint"):
        assert [step for step, _ in readable_checkpoints(store)] == [4, 6]
    (store.path(6) / "state.pt").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="step-00000006"), pytest.warns(UserWarning, match="damaged"):
        list(readable_checkpoints(store))


@pytest.mark.slow
def test_a_table_shows_the_numbers_of_the_settings_asked_for_last(tiny: Tiny) -> None:
    folder = trained(tiny, "knn")
    first = top1(folder)
    assert main(["evaluate", str(folder), "--only", "knn", "--evaluation.knn.ks", "1"]) == 0
    assert read_results(folder).entries[0]["k"] == 1
    assert main(["evaluate", str(folder), "--only", "knn"]) == 0
    assert read_results(folder).entries[0]["k"] == 20
    assert top1(folder) == first
    content = json.loads((folder / "results.json").read_text())
    content["entries"].reverse()  # tables do not go by the order in the file
    (folder / "results.json").write_text(json.dumps(content))
    assert top1(folder) == first


def test_results_on_corruptions_that_another_generator_made_are_not_taken_for_todays(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny("byol-digits-tma")
    released = replace(made, evaluation=replace(made.evaluation, imagenet_c_root="/data/imagenet-c"))
    before = [settings_of("imagenet-c", pipeline) for pipeline in (made, released)]
    monkeypatch.setattr(GeneratedCorruptions, "generator", "another one")
    after = [settings_of("imagenet-c", pipeline) for pipeline in (made, released)]
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, True]


def test_settings_cover_what_numbers_depend_on_and_nothing_else(tiny: Tiny) -> None:
    base = tiny("byol-digits-tma")

    def settings(name: str, **changes: Any) -> str:
        return settings_of(name, replace(base, evaluation=replace(base.evaluation, **changes)))

    detection = base.evaluation.voc
    assert settings("voc", voc=replace(detection, log_every=7, num_workers=1)) == settings("voc")
    assert settings("voc", voc=replace(detection, seed=1)) != settings("voc")
    assert settings("voc", voc_trials=5) != settings("voc")
    assert settings("imagenet-c", severities=(1,)) != settings("imagenet-c")
    assert settings("knn", linear=replace(base.evaluation.linear, seed=5)) == settings("knn")


@pytest.mark.slow
def test_a_killed_evaluation_on_corruptions_resumes_with_the_next_cell(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corruptions, "cells_of", lambda source: [("contrast", 1), ("brightness", 1), ("pixelate", 1)])
    measured: list[tuple[str, int]] = []
    real = corruptions.evaluate_cell

    def killed_at(number: int) -> Callable[..., Any]:
        def measure(models: Any, source: Any, corruption: str, severity: int, *rest: Any, **options: Any) -> Any:
            if len(measured) == number:
                raise KeyboardInterrupt
            measured.append((corruption, severity))
            return real(models, source, corruption, severity, *rest, **options)

        return measure

    monkeypatch.setattr(corruptions, "evaluate_cell", killed_at(2))
    with pytest.raises(KeyboardInterrupt):
        trained(tiny, "imagenet-c")
    monkeypatch.setattr(corruptions, "evaluate_cell", killed_at(9))
    folder = trained(tiny, "imagenet-c")
    assert measured == [("contrast", 1), ("brightness", 1), ("pixelate", 1)]
    assert read_results(folder).entries[0]["evaluation"] == "imagenet-c"
    assert not (folder / ".imagenet-c").exists()


def write_classes(root: Path, names: list[str]) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        Image.fromarray(np.full((40, 40, 3), 90, dtype=np.uint8)).save(root / name / "a.png")
    return root


def test_released_images_of_other_classes_are_refused(tmp_path: Path) -> None:
    for severity in range(1, 6):
        write_classes(tmp_path / "contrast" / str(severity), ["ant", "bee"])
    data = DataConfig(dataset="imagefolder", root="unused", image_size=32)
    config = EvaluationConfig(imagenet_c_root=str(tmp_path))
    assert corruptions.corruption_source(data, config, ("ant", "bee")).num_classes == 2
    with pytest.raises((ConfigError, DataError), match="cat"):
        corruptions.corruption_source(data, config, ("ant", "cat"))


def test_folders_of_images_are_corrupted_here_and_kept(tmp_path: Path) -> None:
    write_classes(tmp_path / "data" / "val", ["ant", "bee"])
    data = DataConfig(dataset="imagefolder", root=str(tmp_path / "data"), image_size=32)
    write_classes(tmp_path / "data" / "train", ["ant", "bee"])
    config = EvaluationConfig(corruption_cache=str(tmp_path / "kept"))
    source = corruptions.corruption_source(data, config, ("ant", "bee"))
    assert len(source.cell("contrast", 1)) == 2
    source.cell("contrast", 1)[0]
    assert [path.suffix for path in (tmp_path / "kept").rglob("a*.*")] != []
    for split in ("train", "val"):
        for name in ("ant", "bee"):
            (tmp_path / "data" / split / name / "deep").mkdir()
            file = tmp_path / "data" / split / name / "a.png"
            file.rename(file.parent / "deep" / "a.png")
    deeper = corruptions.corruption_source(data, EvaluationConfig(), ("ant", "bee"))
    assert deeper.clean.names == ("ant/deep/a", "bee/deep/a")


def test_several_fine_tunings_have_their_mean_reported(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    class Result:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def entries(self, *, network: str) -> list[dict[str, Any]]:
            common = {"evaluation": "voc", "network": network, "which": "last", "backend": "torchvision"}
            return [{**common, "metric": "AP", "value": 50.0 + self.seed}]

    def transfer(backbone: Any, config: Any, *, folder: Path, device: Any) -> Result:
        folders.append(folder)
        return Result(config.seed)

    monkeypatch.setattr(voc, "detection_transfer", transfer)
    folder = trained(tiny)
    settings = ["--evaluation.voc.backend", "torchvision", "--evaluation.voc.data-root", str(tmp_path)]
    assert main(["evaluate", str(folder), "--only", "voc", "--evaluation.voc-trials", "3", *settings]) == 0
    (entry,) = read_results(folder).entries
    assert entry["value"] == 51.0
    assert entry["trials"] == [50.0, 51.0, 52.0]
    assert len(set(folders)) == 3


def test_no_fine_tunings_are_refused() -> None:
    with pytest.raises(StsError, match="voc_trials must be at least 1"):
        EvaluationConfig(voc_trials=0)


@pytest.mark.slow
def test_runs_under_comparison_are_shown_each_corrupted_image_in_one_pass(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corruptions, "cells_of", lambda source: [("contrast", 1), ("brightness", 1)])
    one, two = (trained(lambda name, k=k, **o: tiny(name, seed=k, **o)) for k in (0, 1))
    shown: list[int] = []
    real = corruptions.evaluate_cell
    monkeypatch.setattr(
        corruptions, "evaluate_cell", lambda models, *r, **o: shown.append(len(models)) or real(models, *r, **o)
    )
    assert main(["evaluate", str(one), str(two), "--only", "imagenet-c"]) == 0
    assert shown == [2, 2]
    together = read_results(two).entries[0]["value"]
    (two / "results.json").unlink()
    assert main(["evaluate", str(two), "--only", "imagenet-c"]) == 0
    assert read_results(two).entries[0]["value"] == together
