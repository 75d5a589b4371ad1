"""The hours that nobody has measured: what the catalog says of them, and the model behind it."""

from dataclasses import replace

import pytest

from sts_methods import build_backbone
from sts_pipelines.catalog import CATALOG
from sts_pipelines.catalog.hours import A100, COUNTED, GPUS, RESNET50_FLOPS, Gpu, Hours, Step, Work, estimates
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.diagnostics import work
from sts_pipelines.diagnostics.fake_step import forward_flops

BYOL = (2_083_150_000_000, 8_174_000_000, 35_000_000)  # a step of 32 images, an image of an evaluation, weights


BOUND = ("arithmetic", "arithmetic")


def ours(name: str, *flags: str) -> Work:
    """The work of a pipeline, as if any method were BYOL on ResNet-50."""
    return work.work_of(resolve(name, list(flags)), flops_alike)


def flops_alike(pipeline: PipelineConfig) -> tuple[int, int, int]:
    per_worker = pipeline.training.global_batch_size / pipeline.training.accumulation / pipeline.cluster.num_workers
    return int(BYOL[0] * per_worker / 32), *BYOL[1:]


def test_the_unit_of_work_is_a_training_image_of_resnet_50() -> None:
    assert 3 * forward_flops(build_backbone("resnet50"), 224) == pytest.approx(RESNET50_FLOPS, rel=1e-3)
    for half, speed in ((False, 938), (True, 2470)):
        second = Step(images=speed, half=half)
        assert Work(step=second, num_steps=3599, evaluation=second).hours(A100) == pytest.approx(1.0)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_step_takes_as_long_as_the_longest_of_its_parts(gpu: Gpu) -> None:
    nothing = Step(images=0.0)
    one = Step(images=100.0, operations=2000, collectives=100, sent_bytes=1e8, decoded=32.0)
    alone = [Step(images=100.0), *(replace(one, images=0.0, **gone) for gone in _all_but_one())]
    hours = [Work(step=step, num_steps=1e6, evaluation=nothing).hours(gpu) for step in alone]
    assert min(hours) > 0
    assert Work(step=one, num_steps=1e6, evaluation=nothing).hours(gpu) == max(hours)


def _all_but_one() -> list[dict[str, float]]:
    launches, exchange, images = {"operations": 0}, {"collectives": 0, "sent_bytes": 0.0}, {"decoded": 0.0}
    return [exchange | images, launches | images, launches | exchange]


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("name", ["byol-imagenet-200ep-sts", "moco-imagenet-200ep-sts"])
def test_more_gpus_are_not_slower_nor_is_half_precision(name: str, gpu: Gpu) -> None:
    for precision in ("float32", "float16", "bfloat16"):
        flags = ("--precision", precision, "--cluster.num-workers")
        hours = [ours(name, *flags, num).hours(gpu) for num in ("1", "2", "4", "8")]
        assert hours == sorted(hours, reverse=True)
        assert hours[-1] < hours[0] / 3
    full, half, other = (ours(name, "--precision", kind).hours(gpu) for kind in ("float32", "float16", "bfloat16"))
    assert half == other < full


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_twice_the_launches_or_bytes_are_never_faster_and_slower_once_they_are_the_bound(gpu: Gpu) -> None:
    one = ours("byol-imagenet-200ep-sts")
    for part, field in (("launches", "operations"), ("exchange", "collectives"), ("exchange", "sent_bytes")):
        hours, bound = [], []
        for times in (2**power for power in range(8)):
            step = replace(one.step, **{field: times * getattr(one.step, field)})
            hours.append(replace(one, step=step).hours(gpu))
            bound.append(step.bound(gpu) == part)
        assert hours == sorted(hours)
        assert not bound[0]
        assert bound[-1]
        assert hours[-1] > hours[0]


def test_a_recipe_counts_with_what_a_null_gpu_counted_and_another_network_with_nothing() -> None:
    byol = COUNTED["byol"]
    step = ours("byol-imagenet-200ep-sts").step
    assert step.operations == byol.data + byol.gradients + byol.update
    assert (step.collectives, step.sent_bytes) == (byol.collectives, 1e6 * byol.megabytes)
    assert ours("byol-imagenet-200ep-sts", "--precision", "bfloat16").step.operations == step.operations + byol.casts
    alone = ours("byol-imagenet-200ep-sts", "--cluster.num-workers", "1").step
    assert (alone.operations, alone.collectives, alone.sent_bytes) == (step.operations, 0, 0.0)
    other = ours("byol-imagenet-200ep-sts", "--method.backbone", "resnet18").step
    assert (other.operations, other.collectives, other.sent_bytes) == (0, 0, 4.0 * BYOL[2])


def test_few_loader_processes_are_what_a_step_is_bound_by() -> None:
    few = ours("byol-imagenet-200ep-sts", "--data.num-workers", "1", "--precision", "bfloat16").step
    assert few.bound(A100) == "images"
    assert few.seconds(A100)["images"] == pytest.approx(32 / 539)
    capped = ours("byol-imagenet-200ep-sts", "--data.num-workers", "99").step.seconds(A100)
    assert capped["images"] == pytest.approx(32 / 539 / 8), "a worker has 8 CPUs"


def test_estimates_are_marked_and_long_ones_are_days() -> None:
    assert str(Hours(gpus=8, hours=(27.7, 88.5), bound=BOUND)) == "~28 / ~88 h est."
    assert str(Hours(gpus=1, hours=(0.222, 0.709), bound=BOUND)) == "~13 / ~43 min est."
    assert str(Hours(gpus=1, hours=(0.222, 0.709), bound=BOUND, per_images=1000)) == "~13 / ~43 min/1,000 est."
    days = Hours(gpus=8, hours=(887.6, 2832.0), bound=BOUND)
    assert str(days) == "~37 / ~120 d est."
    assert days.in_words() == "about 37 days on 8 A100 or 120 on 8 RTX 2080 Ti"


@pytest.mark.slow
def test_the_catalog_says_what_the_model_counts() -> None:
    assert work.estimates_of_the_catalog() == estimates(), "ci/bench hours writes them"


def test_every_recipe_is_bound_by_arithmetic_but_mean_teachers_by_launches_in_half_precision_on_an_a100() -> None:
    others = {
        (name, kind): tuple(one.bound)
        for name, kinds in estimates().items()
        for kind, one in kinds.items()
        if tuple(one.bound) != BOUND
    }
    assert others == {("mean-teacher-cifar10-4000", "bfloat16"): ("launches", "arithmetic")}


def test_no_pipeline_has_a_question_mark_and_all_that_need_gpus_say_what_bfloat16_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert [name for name, entry in CATALOG.items() if "?" in entry.hours] == []
    for name, entry in CATALOG.items():
        assert entry.is_estimated == ("GPU" in entry.hardware) == (" est." in entry.bfloat16), name
        assert "not measured" not in entry.description, name
        assert ("with --precision bfloat16" in entry.description) == (entry.bfloat16 not in ("-", entry.hours)), name
    assert main(["list", "byol-imagenet-p-by-m"]) == 0
    _, row, note = capsys.readouterr().out.splitlines()
    assert row.endswith("~37 / ~120 d est.  ~16 / ~78 d est.")
    assert note.startswith("est.: ")
    assert len(note) <= 80


def test_a_name_that_the_file_of_hours_lacks_has_a_question_mark() -> None:
    from sts_pipelines.catalog.registry import named

    named("byol-nowhere", paper="-", hardware="1 GPU")(lambda: resolve("byol-photos", ["--data.root", "photos"]))
    try:
        assert (CATALOG["byol-nowhere"].hours, CATALOG["byol-nowhere"].bfloat16) == ("?", "-")
    finally:
        del CATALOG["byol-nowhere"]


def test_images_of_yours_are_estimated_by_the_thousand_and_cpus_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "flops_of", flops_alike)
    first = work.estimate_of(resolve("byol-photos", ["--data.root", "photos"]))[0]
    assert first == "about 2.3 minutes on one A100 or 7.2 on one RTX 2080 Ti for every 1,000 images"
    assert work.estimate_of(resolve("byol-digits-sts")) == []


def test_a_check_says_what_a_step_is_bound_by_and_what_bfloat16_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "flops_of", flops_alike)
    own, half, a100, _ = work.estimate_of(resolve("byol-imagenet-200ep-sts"))
    assert own == "about 28 hours on 8 A100 or 88 on 8 RTX 2080 Ti"
    assert half == "about 12 hours on 8 A100 or 59 on 8 RTX 2080 Ti with --precision bfloat16"
    assert a100.startswith("a step on A100 is bound by arithmetic: arithmetic 91, launches 23, exchange ")
    assert len(work.estimate_of(resolve("byol-imagenet-200ep-sts", ["--precision", "bfloat16"]))) == 3
    other = work.estimate_of(resolve("byol-imagenet-200ep-sts", ["--method.backbone", "resnet18"]))
    assert "launches not counted" in other[2]


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
    monkeypatch.setattr(work, "flops_of", flops_alike)
    monkeypatch.setattr("sts_pipelines.cli.verbs.run.check_and_note", lambda config, folder: None)
    monkeypatch.setattr("sts_pipelines.sweep.run.run_sweep", lambda config: said.append(capsys.readouterr().err))
    assert main(["sweep", "byol-imagenet-p-by-m", "--data.root", "photos"]) == 0
    assert said == ["32 runs in all: about 37 days on 8 A100 or 120 on 8 RTX 2080 Ti, by estimate\n"]
    assert main(["sweep", "byol-digits-p-by-m"]) == 0
    assert said[1:] == [""], "nothing is known of CPUs"
