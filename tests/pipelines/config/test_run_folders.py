"""Folders of runs, of comparisons and of sweeps: what the verbs make of them, and of what was damaged in them."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sts_core.errors import ConfigError
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.cli.verbs.run import run_pipeline
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.reading import from_dict
from sts_pipelines.config.sweep import GridConfig, SweepConfig
from sts_pipelines.launch.job import Job

Tiny = Callable[..., PipelineConfig]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = str(tmp_path_factory.mktemp("runs"))
    flags = ["--steps", "1", "--epochs", "none", "--cluster.num-workers", "0", "--cluster.storage-path", storage]
    assert main(["run", "byol-digits-sts", *flags, "--evaluation.after-training", "knn"]) == 0
    return next(Path(storage).iterdir())


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A finished run to be damaged."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.slow
def test_the_folder_of_a_comparison_is_understood_by_every_verb(
    trained: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny("byol-digits-sts")
    comparison = ComparisonConfig(pipeline=base, variants=dict.fromkeys(("fast", "slow"), base.training.smoothing))
    folder, reported = comparison.folder, list[list[str]]()

    def launch(jobs: Sequence[Job], **options: object) -> None:
        for job in jobs:
            shutil.copytree(trained, job.folder)

    def write_report(runs: Sequence[Path], output: Path, **options: object) -> tuple[Path, Path]:
        reported.append([run.name for run in runs])
        return output, output

    monkeypatch.setattr("sts_eval.write_report", write_report)
    with monkeypatch.context() as patch:
        patch.setattr("sts_pipelines.launch.driver.launch", launch)
        run_pipeline(comparison)
    assert resolve(str(folder / "config.yaml")) == comparison
    assert main(["report", str(folder)]) == 0
    assert reported == [["fast", "slow"]] * 2
    capsys.readouterr()
    assert main(["doctor", str(folder)]) == 0
    assert capsys.readouterr().out.count("everything needed to resume is there and intact") == 2
    assert main(["evaluate", str(folder)]) == 0
    assert {"fast", "slow"} <= set(capsys.readouterr().out.split())
    assert main(["export", str(folder), "--to", "timm", "--output", "x.safetensors"]) == 2
    assert "pass one of its folders fast, slow" in capsys.readouterr().err
    shutil.rmtree(folder / "slow" / "checkpoints")
    assert main(["doctor", str(folder)]) == 1


def test_the_folder_of_a_sweep_holds_its_config(tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = SweepConfig(pipeline=tiny("byol-digits-sts"), sweep=GridConfig(momenta=(0.5,)))
    monkeypatch.setattr("sts_pipelines.cli.resolve.resolve", lambda target, overrides, to_sweep: recipe)
    monkeypatch.setattr("sts_pipelines.sweep.run.run_sweep", lambda recipe: [])
    assert main(["sweep", "mine"]) == 0
    (config,) = tmp_path.glob("*/config.yaml")
    assert resolve(str(config)) == recipe


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", None, "config.yaml: MISSING"),
        ("config.yaml", "name: [", "config.yaml: DAMAGED"),
        ("config.yaml", "name: x", "config.yaml: DAMAGED"),
    ],
)
def test_a_run_with_a_damaged_file_is_not_called_intact(
    name: str, content: str | None, said: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_text(content)
    assert main(["doctor", str(run)]) == 1
    text = capsys.readouterr().out
    assert said in text
    assert "NOT RESUMABLE" in text


@pytest.mark.parametrize("content", ['{"entries": [', "{}"])
def test_damaged_results_are_told_and_cost_only_their_measurement(
    content: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "results.json").write_text(content)
    assert main(["doctor", str(run)]) == 1
    text = capsys.readouterr().out
    assert "results.json: DAMAGED" in text
    assert text.endswith("\nresumable; sts evaluate measures it again\n")


@pytest.mark.parametrize("content", ["{", "{}", '{"format": "sts-backbone", "version": 1}'])
def test_a_damaged_manifest_is_a_damaged_network(content: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "teacher.json").write_text(content)
    assert main(["doctor", str(run / "teacher.safetensors")]) == 1
    assert main(["doctor", str(run)]) == 0  # the checkpoints are there to resume from
    text = capsys.readouterr().out
    assert "teacher: DAMAGED" in text
    assert text.endswith("\nresumable; the command that made the run saves teacher again\n")


def test_a_network_whose_tensors_are_gone_is_damaged_and_not_unfinished(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "student.safetensors").unlink()
    assert main(["doctor", str(run)]) == 0
    text = capsys.readouterr().out
    assert "student: DAMAGED" in text
    assert "not saved yet" not in text
    assert text.endswith("\nresumable; the command that made the run saves student again\n")


def test_a_method_is_written_by_its_name_and_read_from_both_spellings_under_one_digest() -> None:
    plain = to_dict(resolve("fixmatch-digits-sts"))
    method = {name: plain["method"][name] for name in ("backbone", "stem", "num_classes")}
    plain["data"] |= {"views": "mean_teacher"}
    old, new = (
        from_dict(PipelineConfig, plain | {"method": method | {"kind": kind}})
        for kind in ("meanteacher", "mean_teacher")
    )
    assert old == new
    assert to_dict(new)["method"]["kind"] == "mean_teacher"
    assert new.run_name == old.run_name


@pytest.mark.parametrize("name", ["..", "", ".", "a/b", ".hidden"])
def test_a_variant_whose_name_is_no_folder_inside_the_comparison_is_refused(name: str, tiny: Tiny) -> None:
    base = tiny("byol-digits-sts")
    with pytest.raises(ConfigError, match="a variant's folder has its name"):
        ComparisonConfig(pipeline=base, variants={name: base.training.smoothing})
