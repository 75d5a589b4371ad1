"""What guides take for granted: a page names these fixtures in `<!-- given: ... -->`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import sts_methods
from tests.methods.data.stored_images import write_shards, write_tables


@pytest.fixture
def student() -> nn.Module:
    """Somebody's network."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


@pytest.fixture
def optimizer(student: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(student.parameters(), lr=0.1)


@pytest.fixture
def loader() -> Any:
    generator = torch.Generator().manual_seed(0)
    images = torch.utils.data.TensorDataset(torch.randn(32, 16, generator=generator), torch.arange(32) % 4)
    return torch.utils.data.DataLoader(images, batch_size=8)


@pytest.fixture
def distance() -> Any:
    return nn.functional.mse_loss


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Any]:
    """A process group of one, as torchrun would have made it."""
    from torch import distributed
    from torch.distributed.device_mesh import DeviceMesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield DeviceMesh("cpu", [0])
    distributed.destroy_process_group()


@pytest.fixture
def lightning_module() -> Any:
    lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(16, 4)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


@pytest.fixture
def examples() -> list[dict[str, Any]]:
    return [{"x": torch.ones(16), "labels": number % 4} for number in range(8)]


@pytest.fixture
def transformers_model() -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(16, 4)

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    return Model()


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder where the page runs: photos/ without labels, and labelled/{train,val}/CLASS/."""
    monkeypatch.chdir(tmp_path)
    write_images(f"photos/2026/{number}.jpg" for number in range(10))
    write_images(f"labelled/{split}/{kind}/{n}.jpg" for split in ("train", "val") for kind in "ab" for n in range(6))


def write_images(names: Iterable[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(256, (40, 50, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(name)


@pytest.fixture
def imagenet() -> None:
    """In the folder where the page runs: imagenet/{train,val}/CLASS/."""
    write_images(f"imagenet/{split}/{kind}/{n}.jpg" for split in ("train", "val") for kind in "ab" for n in range(6))


@pytest.fixture
def shards() -> None:
    """In the folder where the page runs: shards/."""
    write_shards(Path("shards"))


@pytest.fixture
def tables() -> None:
    """In the folder where the page runs: tables/, as `save_to_disk` leaves it."""
    write_tables(Path("tables"), "arrow")


@pytest.fixture
def wide_run() -> None:
    """A run of FixMatch, as far as its backbone goes."""
    about = {"backbone": "wrn_28_2", "stem": "cifar", "network": "teacher", "method": "fixmatch", "step": 1}
    network = sts_methods.build_backbone("wrn_28_2", stem="cifar")
    sts_methods.save_backbone("runs/fixmatch-cifar10-40-sts/teacher", network, smoothing={}, **about)


@pytest.fixture
def moco_file() -> None:
    """A checkpoint as MoCo's authors write it."""
    tensors = timm.create_model("resnet50", num_classes=0).state_dict()
    state = {f"module.encoder_q.{name}": value for name, value in tensors.items()}
    torch.save({"state_dict": state}, "moco_v2_800ep_pretrain.pth.tar")


@pytest.fixture
def dino_file() -> None:
    """A checkpoint as DINO's authors write it."""
    tensors = timm.create_model("vit_small_patch16_224", num_classes=0).state_dict()
    torch.save({"student": {f"module.backbone.{name}": value for name, value in tensors.items()}}, "checkpoint.pth")
