"""The hours that nobody has measured: what the catalog says of them, and the model behind it."""

import pytest

from sts_methods import build_backbone
from sts_pipelines.catalog import CATALOG
from sts_pipelines.catalog.hours import A100, RESNET50_FLOPS, estimate_in_words, estimated, hours_on
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.kinds import base_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.diagnostics import work
from sts_pipelines.diagnostics.fake_step import forward_flops


def test_the_unit_of_work_is_a_training_image_of_resnet_50() -> None:
    assert 3 * forward_flops(build_backbone("resnet50"), 224) == pytest.approx(RESNET50_FLOPS, rel=1e-3)
    assert hours_on(A100, 938 * 3600 / 1e6, gpus=1) == pytest.approx(1.0)
    assert hours_on(A100, 2470 * 3600 / 1e6, gpus=1, half=True) == pytest.approx(1.0)


def test_estimates_are_marked_and_long_ones_are_days() -> None:
    assert estimated(748.9, gpus=8) == "~28 / ~88 h est."
    assert estimated(0.75, gpus=1) == "~13 / ~43 min est."
    assert estimated(32 * 748.9, gpus=8) == "~37 / ~120 d est."
    assert estimate_in_words(32 * 748.9, gpus=8) == "about 37 days on 8 A100 or 120 on 8 RTX 2080 Ti"


@pytest.mark.slow
def test_the_catalog_says_what_the_model_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: dict[str, tuple[int, int]] = {}  # the same for all runs of a network and batch
    count = work.flops_of

    def once(pipeline: PipelineConfig) -> tuple[int, int]:
        training = pipeline.training
        key = f"{training.method} {training.data.views} {training.global_batch_size / training.accumulation}"
        if key not in counted:
            counted[key] = count(pipeline)
        return counted[key]

    monkeypatch.setattr(work, "flops_of", once)
    for entry in CATALOG.values():
        if not entry.hours.endswith("est."):
            continue
        config = entry.build()
        millions = work.millions_of(config)
        assert millions is not None
        base = base_of(config)
        half = base.training.precision != "float32"
        assert entry.hours == estimated(millions, gpus=base.cluster.num_workers, half=half), entry.name


def test_only_what_depends_on_your_images_has_a_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    assert [name for name, entry in CATALOG.items() if entry.hours == "?"] == ["byol-photos"]
    assert main(["list", "byol-imagenet-p-by-m"]) == 0
    _, row, note = capsys.readouterr().out.splitlines()
    assert row.endswith("~37 / ~120 d est.")
    assert note.startswith("est.: ")
    assert len(note) <= 80


def test_cpus_and_images_of_yours_have_no_estimate() -> None:
    assert work.estimate_of(resolve("byol-digits-sts")) is None
    assert work.estimate_of(resolve("byol-photos", ["--data.root", "photos"])) is None


def test_a_sweep_counts_all_of_its_runs() -> None:
    assert work.num_runs(resolve("byol-imagenet-p-by-m")) == 32
    assert work.num_runs(resolve("byol-imagenet-p-by-m", ["--sweep.with-control", "true"])) > 50
    assert work.num_runs(resolve("fixmatch-cifar10-20-p-by-m")) == 1, "one student with 32 teachers"
    assert work.num_runs(resolve("byol-imagenet-drift")) == 3


def test_optuna_chooses_one_granularity_for_each_of_its_points() -> None:
    flags = ["--sweep.search", "optuna", "--sweep.num-samples", "5", "--sweep.seeds", "0,1"]
    flags += ["--sweep.granularities", "layer,channel,neuron"]
    assert work.num_runs(resolve("byol-imagenet-p-by-m", flags)) == 10
    assert work.num_runs(resolve("byol-imagenet-p-by-m", [*flags, "--sweep.with-control", "true"])) == 20


def test_a_sweep_says_how_long_all_of_its_runs_take_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    monkeypatch.setattr(work, "flops_of", lambda pipeline: (2_083_150_000_000, 8_174_000_000))  # BYOL, ResNet-50
    monkeypatch.setattr("sts_pipelines.cli.verbs.run.check_and_note", lambda config, folder: None)
    monkeypatch.setattr("sts_pipelines.sweep.run.run_sweep", lambda config: said.append(capsys.readouterr().err))
    assert main(["sweep", "byol-imagenet-p-by-m", "--data.root", "photos"]) == 0
    assert said == ["32 runs in all: about 37 days on 8 A100 or 120 on 8 RTX 2080 Ti, by estimate\n"]
    assert main(["sweep", "byol-digits-p-by-m"]) == 0
    assert said[1:] == [""], "nothing is known of CPUs"
