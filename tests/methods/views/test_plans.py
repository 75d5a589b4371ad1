"""What a batch needs on its device: planned on the host and sent at once, for several views or one."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from sts_methods import DataConfig, LocalRuntime
from sts_methods.data import batches
from sts_methods.data.batches import augments_on_device, build_training_data
from sts_methods.draws import Keys
from sts_methods.runs.runtime import RunPlan
from sts_methods.transfer import pack
from sts_methods.views.batched import make_views, plan_views, view_groups
from sts_methods.views.specs import Views, digit_crop, multi_crop, two_views, two_weak_views, weak_and_strong
from tests.methods.training import tiny_training as tiny
from tests.methods.views import pillow_reference as reference
from tests.methods.views.one_view import augment_batch

GPU, SIZE = torch.device("cuda", 0), 32
VIEWS: dict[str, Views] = {
    "byol": two_views(views="byol", image_size=SIZE),
    "byol_deepmind": two_views(views="byol_deepmind", image_size=SIZE),
    "dino": multi_crop(image_size=SIZE, num_local=3),
    "digits": (digit_crop(SIZE),) * 2,
    "mean_teacher": two_weak_views(image_size=SIZE),
    "fixmatch": weak_and_strong(image_size=SIZE),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_that_a_gpu_makes_together_are_those_made_alone(name: str) -> None:
    views, pictures = VIEWS[name], reference.photographs(12, height=SIZE, width=SIZE)
    keys = Keys(np.arange(12), np.zeros(12, dtype=np.int64))
    for group in view_groups(views, GPU):
        alike = tuple(views[number] for number in group)
        plan = plan_views(alike, keys, seed=0, streams=[16 + n for n in group], side=(SIZE, SIZE))
        together = make_views(pictures.repeat(len(group), 1, 1, 1), pack(plan).opened(torch.device("cpu")))
        alone = [augment_batch(pictures, views[number], keys, seed=0, stream=16 + number) for number in group]
        assert torch.equal(together, torch.cat(alone))


def test_a_gpu_makes_views_together_that_differ_in_probabilities_only() -> None:
    expected = {
        "byol": ((0, 1),),
        "byol_deepmind": ((0, 1),),
        "dino": ((0, 1), (2, 3, 4)),
        "mean_teacher": ((0, 1),),
        "fixmatch": ((0,), (1,)),
    }
    assert {name: view_groups(VIEWS[name], GPU) for name in expected} == expected
    assert view_groups(VIEWS["byol"], torch.device("cpu")) == ((0,), (1,))


def test_a_parcel_holds_tensors_of_all_types_and_leaves_the_rest_as_it_is() -> None:
    plan = (torch.arange(3), "kept", (torch.tensor([True]), torch.rand(2, 5)), torch.empty(0, 4), None)
    parcel = pack(plan)
    opened = parcel.opened(torch.device("cpu"))
    assert opened[1] == "kept"
    assert opened[4] is None
    for one, two in zip((plan[0], *plan[2], plan[3]), (opened[0], *opened[2], opened[3]), strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one, two)
        assert two.untyped_storage().data_ptr() == parcel.packed.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    ("cores", "ranks", "workers", "on_device"),
    [(128, 8, 8, False), (32, 8, 8, True), (64, 8, 4, True), (8, 1, 8, False)],
)
def test_a_gpu_augments_where_its_loader_processes_could_not_keep_up(
    cores: int, ranks: int, workers: int, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "num_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    config = DataConfig(dataset="imagefolder", views="byol", num_workers=workers)
    assert augments_on_device(config, GPU) == on_device
    assert not augments_on_device(config, torch.device("cpu"))
    for said in (True, False):
        asked = DataConfig(dataset="imagefolder", views="byol", num_workers=workers, device_augmentation=said)
        assert augments_on_device(asked, GPU) == said


def test_the_choice_is_told_before_the_first_step(tmp_path: Path) -> None:
    tiny.write_photos(tmp_path / "photos")
    config = DataConfig(dataset="images", root=str(tmp_path / "photos"), views="byol")
    note = build_training_data(config, seed=0, global_batch_size=2, device=torch.device("meta")).note
    assert note is not None
    assert "\ncolour and blur on the GPU: 0 loader processes per GPU have a core each" in note
    on_cpu = build_training_data(config, seed=0, global_batch_size=2).note
    assert on_cpu is not None
    assert on_cpu.startswith("images are normalised with ImageNet's mean")
    assert "colour and blur" not in on_cpu
    said = io.StringIO()
    runtime = LocalRuntime(tmp_path / "run", stream=said)
    runtime.wrap(torch.nn.Identity())
    plan = RunPlan(
        config={}, first_step=0, total_steps=1, steps_per_epoch=1, images_per_step=1, keep_checkpoints=1, note=note
    )
    runtime.start(plan)
    assert said.getvalue() == note + "\n"
