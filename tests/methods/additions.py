"""A method, its views and a dataset as somebody else's package would bring them: one module, no file of ours."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sts_methods.data.datasets import DATASETS
from sts_methods.methods import registry
from sts_methods.views.specs import VIEWS

NAME = "somebody_elses_package"
MODULE = '''
from dataclasses import dataclass

import numpy as np
import torch

from sts_core import make_teacher
from sts_methods import (
    CropView, DatasetRecord, ImageArrays, MethodRecord, StepResult, StudentTeacherMethod, ViewsRecord, build_backbone,
    register_dataset, register_method, register_views,
)


@dataclass(frozen=True, kw_only=True)
class AgreementConfig:
    """The network of the method."""

    backbone: str = "wrn_10_1"
    """Name for `build_backbone`."""
    stem: str = "cifar"
    """First layers."""


class Network(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, images):
        return self.backbone(images)


class Agreement(StudentTeacherMethod):
    """The student's features of one view are to be the teacher's of another."""

    def __init__(self, config, *, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.student = Network(build_backbone(config.backbone, stem=config.stem))
        self.teacher = make_teacher(self.student)

    def forward(self, batch):
        one, two, _ = batch.views
        with torch.no_grad():
            target = self.teacher(two)
        return StepResult((self.student(one) - target).square().mean())


def stripes(root, split):
    """Horizontal and vertical stripes."""
    rows = np.indices((16, 16))[0] // 2 % 2 * 255
    images = np.stack([rows, rows.T] * (16 if split == "train" else 4)).astype(np.uint8)
    return ImageArrays(
        torch.from_numpy(images)[:, None].repeat(1, 3, 1, 1), np.arange(len(images)) % 2, ("horizontal", "vertical")
    )


register_views(ViewsRecord(name="three", photographs=lambda size, _: (CropView(size=size),) * 3))
register_method(MethodRecord(name="all_agree", config=AgreementConfig, build=Agreement, views="three"))
register_dataset(DatasetRecord(name="stripes", about="drawn", open=stripes, needs_root=False, num_images=32))
'''


@contextmanager
def added(folder: Path) -> Iterator[ModuleType]:
    """The module, imported from a file in `folder`; what it registered is forgotten at the end."""
    registers: list[dict] = [registry.METHODS, registry._RECORDS, DATASETS, VIEWS]  # type: ignore[type-arg]
    before = [dict(register) for register in registers]
    (folder / f"{NAME}.py").write_text(MODULE)
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module(NAME)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(NAME, None)
        for register, content in zip(registers, before, strict=True):
            register.clear()
            register.update(content)
