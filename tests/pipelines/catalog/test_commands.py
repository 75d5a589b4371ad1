"""The command of every entry of the catalog, run as its description gives it: one step, in this process, small images.

CIFAR and ImageNet are not there; folders of their layout with invented images are.
"""

import pickle
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from torchvision.datasets import cifar

from sts_methods import build_backbone
from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.main import main

pytestmark = pytest.mark.slow
SHORTER = ["--steps", "1", "--log-every-steps", "1", "--cluster.num-workers", "0"]
FEWER_CELLS = ["--sweep.momenta", "0.9", "--sweep.preserve-probabilities", "0,0.5"]
ONE_NETWORK = ["--evaluation.networks", "teacher"]
FEW_IMAGES = ["--global-batch-size", "4", "--data.unlabelled-ratio", "1", *ONE_NETWORK]
SMALL_IMAGES = ["--epochs", "null", "--global-batch-size", "8", "--accumulation", "1", "--data.image-size", "64"]
NO_PROCESSES = ["--data.num-workers", "0", "--evaluation.features.num-workers", "0"]
SHORT_PROBE = ["--evaluation.linear.epochs", "1", "--evaluation.linear.milestones", "", "--evaluation.knn.ks", "5"]
WITH_THEIR_OWN_NETWORK = ("byol-imagenet-200ep-sts", "moco-imagenet-200ep-sts", "fixmatch-cifar100-400-sts")
"""The others of these families differ in numbers only, and take seconds less with a small network."""
SMALL_NETWORK = {"imagenet": "test_resnet", "photos": "test_resnet", "cifar100": "wrn_10_1"}
SMALLER = {
    "digits": [],
    "cifar10": FEW_IMAGES,
    "cifar100": [*FEW_IMAGES, "--global-batch-size", "2"],
    "imagenet": [*SMALL_IMAGES, *NO_PROCESSES, *SHORT_PROBE, *ONE_NETWORK],
    "photos": [*SMALL_IMAGES, *NO_PROCESSES],
}


@pytest.fixture(scope="module")
def roots(imagenet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Datasets of the right layout and number of classes, by name."""
    base = tmp_path_factory.mktemp("data")
    for dataset, num_classes in (("cifar10", 10), ("cifar100", 100)):
        write_cifar(base / dataset, num_classes=num_classes)
    return {"imagenet": imagenet, "photos": imagenet, "cifar10": base / "cifar10", "cifar100": base / "cifar100"}


def write_cifar(root: Path, *, num_classes: int) -> None:
    """Enough training images for the most labels of the paper, a hundred per class and 4000 of CIFAR-10."""
    folder = root / ("cifar-10-batches-py" if num_classes == 10 else "cifar-100-python")
    folder.mkdir(parents=True)
    names = {"train": 10_000, "test": 10}
    if num_classes == 10:
        names = {f"data_batch_{k}": 1_000 for k in range(1, 6)} | {"test_batch": 10}
    generator = np.random.default_rng(0)
    for name, number in names.items():
        labels = [k % num_classes for k in range(number)]
        images = generator.integers(0, 256, (number, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": images, "labels": labels, "fine_labels": labels}))
    classes = [str(k) for k in range(num_classes)]
    meta = {"label_names": classes, "fine_label_names": classes}
    (folder / ("batches.meta" if num_classes == 10 else "meta")).write_bytes(pickle.dumps(meta))


def trained_network(folder: Path) -> Path:
    """What a description fetches from the network, with the small network inside."""
    save_file(build_backbone("test_resnet").state_dict(), folder / "trained.safetensors")
    return folder / "trained.safetensors"


def dataset_of(name: str) -> str:
    return next((dataset for dataset in ("imagenet", "cifar100", "cifar10", "photos") if dataset in name), "digits")


def shortened(name: str, roots: dict[str, Path]) -> list[str]:
    """The words behind `sts` of the command in an entry's description, on data that is there and made quick."""
    command = next(line for line in CATALOG[name].description.splitlines() if line.strip().startswith("sts "))
    words = command.split()[1:]
    dataset = dataset_of(name)
    if "--data.root" in words:
        words[words.index("--data.root") + 1] = str(roots[dataset])
    if "--initial.weights" in words:
        words[words.index("--initial.weights") + 1] = str(trained_network(roots[dataset]))
    words += SHORTER + SMALLER[dataset]
    if name.startswith("dino"):
        words += ["--method.num-prototypes", "64", "--precision", "float32"]
    if name.startswith("moco-v3-imagenet"):
        words += ["--method.hidden-dim", "64", "--precision", "float32"]
    if "vit" in name:
        words += ["--method.backbone", "test_vit"]
    elif dataset in SMALL_NETWORK and name not in WITH_THEIR_OWN_NETWORK:
        words += ["--method.backbone", SMALL_NETWORK[dataset]]
    if name == "byol-digits-drift":
        words += ["--epochs", "null", "--steps", "22"]  # an epoch, which is what a drift is measured over
    if name.endswith("granularity"):
        words += ["--sweep.cells", ""]
    return words + (FEWER_CELLS if words[0] == "sweep" else [])


@pytest.mark.parametrize("name", CATALOG)
def test_the_command_of_an_entry_runs(
    name: str,
    roots: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cifar, "check_integrity", lambda path, md5=None: Path(path).exists())
    assert main(shortened(name, roots)) == 0, capsys.readouterr().err
    assert "report: " in capsys.readouterr().out
