"""sts check: what a pipeline needs, before it costs a night."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sts_core.errors import ConfigError, StsError
from sts_methods import Batch, DinoConfig, StepResult, build_method
from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.diagnostics import dry_run
from sts_pipelines.diagnostics.dry_run import check_pipeline
from sts_pipelines.diagnostics.fake_step import batch_of, fake_step, per_worker
from sts_pipelines.diagnostics.preflight import check_data, check_evaluations, examine_data
from sts_pipelines.errors import UsageError
from sts_pipelines.launch import placement
from sts_pipelines.launch.placement import fits
from tests.methods.data.stored_images import write_shards


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "byol-digits-sts",
        "byol-imagenet-300ep-deepmind",
        "moco-cifar10-sts",
        "moco-imagenet-200ep-sts",
        "fixmatch-digits-tma",
        "fixmatch-cifar10-40-sts",
        "fixmatch-cifar100-400-sts",
    ],
)
def test_a_pipeline_takes_a_step_on_fake_data(name: str) -> None:
    small = ["--data.image-size", "64"] if "imagenet" in name else []  # what it is fed with costs time alone
    text = check_pipeline(resolve(name, small), placement=False)
    assert "check passed" in text
    for part in ("parameters: student ", "units: ", "batch: ", "steps: ", "memory per worker", "one step on"):
        assert part in text, part


@pytest.mark.slow
def test_numbers_of_the_paper_s_byol_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    # ResNet-50 has 161 tensors and 23,508,032 weights without its classifier; 5,004 batches of 256 make an epoch.
    assert main(["check", "byol-imagenet-200ep-sts", "--no-placement", "--data.image-size", "64"]) == 0
    text = capsys.readouterr().out
    assert "backbone 23,508,032" in text
    assert "steps: 1,000,800 (5,004 an epoch of 1,281,167 images)" in text
    assert "batch: 256 = 8 workers x 1 micro-batches x 32 images" in text


def test_units_are_counted_by_granularity() -> None:
    pipeline = CATALOG["byol-digits-sts"].build()
    teacher = build_method(pipeline.training.method, seed=0).teacher  # type: ignore[union-attr]
    text = check_pipeline(pipeline, placement=False)
    weights = sum(parameter.numel() for parameter in teacher.parameters())
    assert f"{len(list(teacher.parameters()))} layers" in text
    assert f"{weights:,} neurons" in text


def test_a_sweep_says_how_many_cells_it_has() -> None:
    assert "sweep: 32 trials" in check_pipeline(CATALOG["byol-digits-p-by-m"].build(), placement=False)


def test_the_bank_of_a_sweep_with_one_student_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    banks: list[int] = []
    monkeypatch.setattr(
        "sts_pipelines.diagnostics.dry_run._memory", lambda pipeline, method, *, bank: banks.append(bank) or []
    )
    check_pipeline(resolve("fixmatch-digits-p-by-m"), placement=False)
    check_pipeline(resolve("fixmatch-digits-sts"), placement=False)
    assert banks == [32, 0]


def test_memory_grows_with_the_bank() -> None:
    from sts_pipelines.diagnostics.dry_run import _memory

    pipeline = CATALOG["byol-digits-sts"].build()
    assert isinstance(pipeline, PipelineConfig)
    method = build_method(pipeline.training.method, seed=0)
    assert _memory(pipeline, method, bank=1000) != _memory(pipeline, method, bank=0)


class LargeVisionTransformers(nn.Module):
    """ViT-L as student and teacher, without memory."""

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.student, self.teacher = (timm.create_model("vit_large_patch16_224") for _ in range(2))
        self.teacher.requires_grad_(False)

    def forward(self, batch: Batch) -> StepResult:
        with torch.no_grad():
            targets = self.teacher(batch.views[1])
        return StepResult((self.student(batch.views[0]) - targets).square().mean())


@pytest.mark.slow
def test_a_bank_of_32_large_vision_transformers_fits_eight_gpus_of_40_gigabytes() -> None:
    pipeline = CATALOG["byol-imagenet-200ep-sts"].build()
    assert isinstance(pipeline, PipelineConfig)
    assert pipeline.cluster.num_workers == 8
    training = replace(
        pipeline.training,
        global_batch_size=8 * 16,
        precision="bfloat16",
        optimizer=replace(pipeline.training.optimizer, name="adamw"),
    )
    method, gib = LargeVisionTransformers(), 2**30
    (text,) = dry_run._memory(replace(pipeline, training=training), method, bank=32)
    weights = 4 * sum(p.numel() for p in method.teacher.parameters())
    said = f"({9 * weights / gib:.2f} GiB weights, 4 of the bank's 32 teachers and optimizer"
    assert said in text, "weights, gradients, two moments, the teacher and four of the bank"
    assert float(re.findall(r"estimated: ([\d.]+) GiB", text)[0]) < 40e9 / gib
    (alone,) = dry_run._memory(
        replace(pipeline, training=training, cluster=replace(pipeline.cluster, num_workers=1)), method, bank=32
    )
    assert float(re.findall(r"\(([\d.]+) GiB weights", alone)[0]) > 40e9 / gib, "in one process it would not"


@pytest.mark.parametrize(
    ("free", "ending"),
    [(64, "64.00 GiB are free here"), (0.0625, "0.06 GiB are free here: a container needs --shm-size=3g")],
)
def test_shared_memory_holds_the_batches_of_all_loaders(
    free: float, ending: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dry_run, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(dry_run.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 2**30))
    pipeline = CATALOG["byol-imagenet-200ep-sts"].build()
    assert isinstance(pipeline, PipelineConfig)
    (text,) = dry_run._shared_memory(pipeline)
    needed = 8 * 2 * pipeline.training.global_batch_size * 2 * 3 * 224 * 224  # processes, batches, images, views, bytes
    assert text == f"shared memory of all loaders: {needed / 2**30:.2f} GiB, {ending}"
    small = CATALOG["byol-digits-sts"].build()
    assert isinstance(small, PipelineConfig)
    assert dry_run._shared_memory(small) == [], "images in memory need no loaders"


class OneConvolution(nn.Module):
    """A method whose networks have 12 weights; the student keeps 4 activations per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Conv2d(3, 4, 1, bias=False), nn.Conv2d(3, 4, 1, bias=False)
        self.teacher.requires_grad_(False)

    def forward(self, batch: Batch) -> StepResult:
        kept = [self.student(view) for view in batch.views]
        return StepResult(torch.stack([view.square().mean() for view in kept]).sum())


@pytest.mark.parametrize(("optimizer", "moments"), [("sgd", 1), ("lars", 1), ("adamw", 2)])
def test_memory_counts_every_moment_and_every_crop(
    optimizer: str, moments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_run, "_gib", lambda num_bytes: f"{num_bytes} B")
    pipeline = CATALOG["byol-imagenet-200ep-sts"].build()
    assert isinstance(pipeline, PipelineConfig)
    training = replace(
        pipeline.training,
        method=DinoConfig(),
        data=replace(pipeline.training.data, views="dino", num_local_crops=8),
        optimizer=replace(pipeline.training.optimizer, name=optimizer),  # type: ignore[arg-type]
        precision="float32",
    )
    (text,) = dry_run._memory(replace(pipeline, training=training), OneConvolution(), bank=0)
    fixed = 512 * (1 + 1 + moments + 1)  # a block each for weights, gradients, moments and the teacher
    assert f"({fixed} B weights and optimizer, " in text
    view = 4 * 32 * 224 * 224  # of a number per pixel; 32 images for each of 8 workers
    kept = (3 + 4) * (2 * view + 8 * 4 * 32 * 96 * 96)
    found = int(re.findall(r"optimizer, (\d+) B activations", text)[0])
    assert kept <= found <= kept + 5 * 4 * view, "beside them, what a view's backward pass needs for a moment"


def test_a_fake_step_multiplies_as_much_as_a_real_one() -> None:
    pipeline = resolve("fixmatch-digits-tma")
    assert isinstance(pipeline, PipelineConfig)
    method = build_method(pipeline.training.method, seed=0)
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    found = fake_step(pipeline, method)
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())
    with FlopCounterMode(display=False) as real:
        method(batch_of(pipeline, per_worker(pipeline), ratio=4, make=torch.randn)).loss.backward()
    assert found.flops == real.get_total_flops() > 0


def test_an_evaluation_that_could_not_follow_is_told_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="byol trains none: take it out of"):
        check_pipeline(resolve("byol-digits-sts", ["--evaluation.after-training", "few-labels"]), placement=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StsError, match="needs the package detectron2"):
        check_evaluations(resolve("byol-digits-sts", ["--evaluation.after-training", "voc"]))  # type: ignore[arg-type]
    elsewhere = ["--evaluation.after-training", "voc", "--cluster.address", "auto"]
    check_evaluations(resolve("byol-digits-sts", elsewhere))  # type: ignore[arg-type]


@pytest.mark.parametrize("dataset", ["imagefolder", "arrays", "images", "webdataset", "huggingface"])
def test_data_that_is_not_there_is_missed_before_the_workers_start(dataset: str, tmp_path: Path) -> None:
    flags = ["--data.dataset", dataset, "--data.root", str(tmp_path / "nowhere")]
    with pytest.raises(ConfigError, match="nowhere"):
        check_data(resolve("byol-digits-sts", flags))  # type: ignore[arg-type]
    check_data(resolve("byol-digits-sts", [*flags, "--cluster.address", "auto"]))  # type: ignore[arg-type]


def test_damaged_files_of_cifar_are_told_before_the_workers_start(tmp_path: Path) -> None:
    config = resolve("byol-cifar10-sts", ["--data.root", str(tmp_path)])
    check_data(config)  # type: ignore[arg-type]  # a folder to download into
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"cut short")
    for check in (check_data, partial(check_pipeline, placement=False)):
        with pytest.raises(ConfigError, match=r"cifar10 needs .* unpacked in .*cifar-10-batches-py, which failed"):
            check(config)  # type: ignore[arg-type]


def test_damaged_and_missing_shards_are_told_before_the_workers_start(tmp_path: Path) -> None:
    root = write_shards(tmp_path / "shards")
    flags = ["--data.dataset", "webdataset", "--data.root", str(root), "--data.cache-folder", str(tmp_path / "cache")]
    config = resolve("byol-digits-sts", [*flags, "--evaluation.knn.ks", "5"])
    check_data(config)  # type: ignore[arg-type]
    (root / "photos-train-0001.tar").write_bytes(b"cut short")
    with pytest.raises(ConfigError, match=r"photos-train-0001.tar is not \(.*\): copy it again"):
        check_data(config)  # type: ignore[arg-type]
    for shard in root.iterdir():
        shard.unlink()
    with pytest.raises(ConfigError, match="needs tar shards, got none in"):
        check_data(config)  # type: ignore[arg-type]


def test_a_check_tells_that_imagenets_validation_images_are_not_sorted(tmp_path: Path) -> None:
    for name in ("train/n01440764/n01440764_1.JPEG", "val/n01440764/a.JPEG", "val/ILSVRC2012_val_00000001.JPEG"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    flags = ["--data.dataset", "imagefolder", "--data.root", str(tmp_path), "--evaluation.knn.ks", "1"]
    with pytest.raises(ConfigError, match=r"val has 1 images of ImageNet in no class's folder"):
        check_pipeline(resolve("byol-digits-sts", flags), placement=False)
    examine_data(resolve("byol-digits-sts", [*flags, "--evaluation.after-training", ""]))  # type: ignore[arg-type]


def test_more_neighbours_than_images_are_told_before_the_training() -> None:
    with pytest.raises(UsageError, match=r"knn.ks must be at most the 1,438 training images of digits, got 2,000$"):
        check_evaluations(resolve("byol-digits-sts", ["--evaluation.knn.ks", "5,2000"]))  # type: ignore[arg-type]


def test_an_evaluation_without_its_images_is_told_before_the_training(tmp_path: Path) -> None:
    flags = ["--data.dataset", "imagefolder", "--data.root", str(tmp_path)]
    (tmp_path / "train").mkdir()
    with pytest.raises(ConfigError, match=r"needs the folder .*val, which does not exist"):
        check_pipeline(resolve("byol-digits-sts", flags), placement=False)
    only_training = [*flags, "--evaluation.after-training", ""]
    check_data(resolve("byol-digits-sts", only_training))  # type: ignore[arg-type]
    (tmp_path / "test").mkdir()
    check_data(resolve("byol-digits-sts", flags))  # type: ignore[arg-type]


def test_a_dataset_without_labels_is_refused_unless_nothing_is_evaluated_on_it(tmp_path: Path) -> None:
    flags = ["--data.dataset", "images", "--data.root", str(tmp_path)]
    with pytest.raises(UsageError, match=r"^linear, knn need labelled images, and dataset images has none"):
        check_evaluations(resolve("byol-digits-sts", flags))  # type: ignore[arg-type]
    only_training = resolve("byol-digits-sts", [*flags, "--evaluation.after-training", ""])
    check_evaluations(only_training)  # type: ignore[arg-type]
    check_data(only_training)  # type: ignore[arg-type]


def test_arrays_without_labels_are_told_before_the_training(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), dtype=np.uint8), np.arange(4)
    path = tmp_path / "mine.npz"
    flags = ["--data.dataset", "arrays", "--data.root", str(path)]
    for missing, message in (("y_train", "needs labelled images"), ("x_test", "must hold the array x_test")):
        content = {"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}
        del content[missing]
        np.savez(path, **content)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            check_data(resolve("byol-digits-sts", flags))  # type: ignore[arg-type]


def test_cifar_needs_a_place_before_the_workers_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'cifar10' needs to know where its files are"):
        check_data(resolve("byol-cifar10-sts"))  # type: ignore[arg-type]
    mistyped = tmp_path / "nowhere"
    with pytest.raises(ConfigError, match="a folder that exists, got root"):
        check_data(resolve("byol-cifar10-sts", ["--data.root", str(mistyped)]))  # type: ignore[arg-type]
    assert not mistyped.exists()
    check_data(resolve("byol-cifar10-sts", ["--data.root", str(tmp_path)]))  # type: ignore[arg-type]  # downloaded later


@pytest.mark.parametrize("dataset", ["digits", "arrays", "imagefolder"])
def test_more_neighbours_than_training_images_are_told_before_the_training(dataset: str, tmp_path: Path) -> None:
    images, labels = np.zeros((30, 8, 8), dtype=np.uint8), np.arange(30) % 2
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    for number in range(30):
        for split in ("train", "val"):
            path = tmp_path / split / f"class{number % 2}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number]).save(path)
    num_images = 1438 if dataset == "digits" else 30
    root = tmp_path / "mine.npz" if dataset == "arrays" else tmp_path
    flags = ["--data.dataset", dataset, *([] if dataset == "digits" else ["--data.root", str(root)])]
    check_data(resolve("byol-digits-sts", [*flags, "--evaluation.knn.ks", str(num_images)]))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"knn lets {num_images + 1} training images vote, and there are {num_images}"):
        check_data(resolve("byol-digits-sts", [*flags, "--evaluation.knn.ks", str(num_images + 1)]))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "flag"), [("imagenet-c", "imagenet-c-root"), ("voc", "voc.data-root")])
def test_a_folder_that_an_evaluation_reads_must_be_there(
    name: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--evaluation.after-training", name, f"--evaluation.{flag}"]
    with pytest.raises(UsageError, match=f"^{name} needs its images, and .*nowhere is not a folder: set --evaluation"):
        check_data(resolve("byol-digits-sts", [*flags, str(tmp_path / "nowhere")]))  # type: ignore[arg-type]
    check_data(resolve("byol-digits-sts", [*flags, str(tmp_path)]))  # type: ignore[arg-type]
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    check_data(resolve("byol-digits-sts", [*flags, f"~/{tmp_path.name}"]))  # type: ignore[arg-type]


def test_an_impossible_network_is_a_mistake_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "byol-digits-sts", "--no-placement", "--method.backbone", "resnet5O"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_workers_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("sts_pipelines.diagnostics.dry_run.fits", lambda request: asked.append(request))
    flags = ["--cluster.num-workers", "2", "--cluster.cpus-per-worker", "64"]
    with pytest.raises(UsageError, match="do not fit on a simulated machine"):
        check_pipeline(resolve("byol-digits-sts", flags), placement=True)
    assert asked == [{"num_cpus": 96, "num_gpus": 8, "bundles": [{"CPU": 64.0}] * 2}]


def test_the_simulated_machine_is_our_own_whatever_ray_address_says(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    asked: list[str] = []

    def init(*, address: str, **options: object) -> None:
        asked.append(address)
        raise ConnectionError

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ConnectionError):
        placement._place({"num_cpus": 1, "num_gpus": 0, "bundles": [{"CPU": 1}]})
    assert set(asked) == {"local"}


@pytest.mark.ray
@pytest.mark.slow
def test_ray_places_eight_workers_on_eight_simulated_gpus_and_not_nine() -> None:
    bundle = {"CPU": 8.0, "GPU": 1.0}
    assert fits({"num_cpus": 96, "num_gpus": 8, "bundles": [bundle] * 8})
    assert not fits({"num_cpus": 96, "num_gpus": 8, "bundles": [bundle] * 9})
