"""Nothing of a training step on a GPU mixes devices, checked without one.

torch's fake tensors have a device, a shape and a type but no values: an operation that meets tensors of a GPU and of
the CPU is an error here as it is there. Backward passes and autocast need a real GPU.
"""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sts_methods import ByolConfig, FixMatchConfig, MoCoConfig, MoCoV3Config, StudentTeacherMethod, build_method
from sts_methods.batch import Batch
from sts_methods.draws import Keys
from sts_methods.methods.dino import DinoConfig
from sts_methods.methods.mean_teacher import MeanTeacherConfig
from sts_methods.methods.registry import MethodConfig
from sts_methods.training.optimizers import OptimizerConfig, build_optimizer
from sts_methods.views.specs import CropView, View, digit_crop, multi_crop, two_views, weak_and_strong
from tests.methods.views.one_view import augment_batch

GPU = torch.device("cuda", 0)
NUM_IMAGES = 8
SMALL = {"backbone": "wrn_10_1", "stem": "cifar"}
METHODS: dict[str, MethodConfig] = {
    "byol": ByolConfig(**SMALL, hidden_dim=16, projection_dim=8),  # type: ignore[arg-type]
    "moco": MoCoConfig(**SMALL, dim=8, queue_size=16, bn_groups=2),  # type: ignore[arg-type]
    "moco_v3": MoCoV3Config(**SMALL, hidden_dim=16, dim=8),  # type: ignore[arg-type]
    "fixmatch": FixMatchConfig(**SMALL, num_classes=3),  # type: ignore[arg-type]
    "fixmatch_teacher": FixMatchConfig(**SMALL, num_classes=3, pseudo_labels="teacher"),  # type: ignore[arg-type]
    "mean_teacher": MeanTeacherConfig(**SMALL, num_classes=3),  # type: ignore[arg-type]
    "dino": DinoConfig(**SMALL, hidden_dim=16, bottleneck_dim=8, num_prototypes=12),  # type: ignore[arg-type]
}
VIEWS: dict[str, tuple[View, ...]] = {
    "moco": two_views(image_size=16)[:1],
    "byol": two_views(views="byol", image_size=16),
    "fixmatch": weak_and_strong(image_size=16),
    "dino": multi_crop(image_size=16, num_local=1),
    "digits": (digit_crop(16),),
}


def on_gpu(method: StudentTeacherMethod) -> StudentTeacherMethod:
    """The same method with fake tensors on a GPU in place of its parameters and buffers."""
    for module in method.modules():
        for name, parameter in module.named_parameters(recurse=False):
            fake = torch.empty_like(parameter, device=GPU)
            module.register_parameter(name, nn.Parameter(fake, requires_grad=parameter.requires_grad))
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, torch.empty_like(buffer, device=GPU))
    return method


def images() -> Tensor:
    return torch.empty(NUM_IMAGES, 3, 16, 16, device=GPU)


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_and_metrics_of_a_batch_on_a_gpu_stay_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fake tensors cannot be pinned.
    for module in ("sts_core.distributed", "sts_methods.methods.moco"):
        monkeypatch.setattr(f"{module}.on_device", lambda values, device: values.to(device))
    method = build_method(METHODS[name], seed=0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        batch = Batch(
            views=(images(), images()),
            indices=torch.arange(NUM_IMAGES),
            step=0,
            labelled=images(),
            teachers_labelled=images(),
            labels=torch.zeros(NUM_IMAGES, dtype=torch.int64, device=GPU),
        )
        result = on_gpu(method)(batch)
    assert {tensor.device for tensor in (result.loss, *result.metrics.values())} == {GPU}


def test_lars_keeps_its_state_on_the_gpu() -> None:
    method = build_method(METHODS["byol"], seed=0)
    built = build_optimizer(method.to("meta"), OptimizerConfig(name="lars", lr=0.1))  # fake tensors lack its operations
    for parameter in method.student.parameters():
        parameter.grad = torch.empty_like(parameter)
    built.step()
    state = [value for values in built.state.values() for value in values.values() if isinstance(value, Tensor)]
    assert state
    assert {tensor.device for tensor in state} == {torch.device("meta")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [(name, k) for name, views in VIEWS.items() for k in range(len(views))])
def test_views_of_images_on_a_gpu_are_made_there(name: str, number: int) -> None:
    view = VIEWS[name][number]
    keys = Keys(np.arange(NUM_IMAGES), np.zeros(NUM_IMAGES, dtype=np.int64))
    side = 20 if isinstance(view, CropView) else view.size
    with FakeTensorMode(allow_non_fake_inputs=True):
        source = torch.empty(NUM_IMAGES, 3, side, side, dtype=torch.uint8, device=GPU)
        made = augment_batch(source, view, keys, seed=0, stream=0)
    assert made.device == GPU
    assert made.shape == (NUM_IMAGES, 3, view.size, view.size)
