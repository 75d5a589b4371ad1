"""A method and a dataset need nothing but their records."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from sts_core import ConfigError
from sts_methods import (
    METHODS,
    ByolConfig,
    DataConfig,
    DatasetRecord,
    LocalRuntime,
    MethodRecord,
    TrainingConfig,
    ViewsRecord,
    dataset_record,
    evaluation_data,
    fit,
    load_backbone,
    method_record,
    register_dataset,
    register_method,
    register_views,
)
from sts_methods.methods.byol import Byol
from sts_methods.methods.registry import _RECORDS
from sts_methods.views.specs import VIEWS
from tests.methods.additions import added


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    with added(tmp_path) as module:
        yield module


def training(module: ModuleType, *, steps: int = 2) -> TrainingConfig:
    return TrainingConfig(
        method=module.AgreementConfig(),
        data=DataConfig(dataset="stripes", views="three", image_size=8),
        global_batch_size=8,
        steps=steps,
        checkpoint_every_steps=1,
    )


def test_a_registered_method_trains_on_a_registered_dataset_and_leaves_its_backbones(
    module: ModuleType, tmp_path: Path
) -> None:
    config = training(module)
    result = fit(config, LocalRuntime(tmp_path / "run", progress=False))
    teacher, manifest = load_backbone(tmp_path / "run" / "teacher")
    assert (result.step, manifest["method"], manifest["step"]) == (2, "all_agree", 2)
    _, test = evaluation_data(config.data)
    images = torch.stack([image for image, _ in test])  # type: ignore[attr-defined]
    with torch.no_grad():
        torch.testing.assert_close(teacher(images), result.backbone("teacher").eval()(images))


def test_its_run_is_resumed_under_its_name_and_no_other_config(module: ModuleType, tmp_path: Path) -> None:
    straight = fit(training(module, steps=3), LocalRuntime(tmp_path / "straight", progress=False))
    shorter = LocalRuntime(tmp_path / "resumed", progress=False)
    fit(training(module, steps=3), shorter)
    last = tmp_path / "resumed" / "checkpoints" / "step-00000003"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    resumed = fit(training(module, steps=3), LocalRuntime(tmp_path / "resumed", progress=False))
    assert all(
        torch.equal(tensor, straight.method.state_dict()[name]) for name, tensor in resumed.method.state_dict().items()
    )


def test_its_views_are_checked_like_those_of_any_method(module: ModuleType) -> None:
    with pytest.raises(ConfigError, match="the views that all_agree trains on, got 'byol': set it to 'three'"):
        replace(training(module), data=DataConfig(dataset="stripes", image_size=8))
    with pytest.raises(ConfigError, match="dino, three, got 'four'"):
        DataConfig(views="four")


def test_a_name_is_given_once() -> None:
    byol = method_record(ByolConfig())
    assert byol is not None
    register_method(byol)
    with pytest.raises(ConfigError, match="every method needs a name of its own, got 'moco'"):
        register_method(replace(byol, name="moco"))
    with pytest.raises(ConfigError, match="every dataset needs a name of its own, got 'digits'"):
        register_dataset(
            DatasetRecord(name="digits", open=lambda root, split: dataset_record("digits").open(None, split))
        )
    with pytest.raises(ConfigError, match="all views need a name of their own, got 'dino'"):
        register_views(ViewsRecord(name="dino", photographs=VIEWS["byol"].photographs))


def test_a_config_that_names_no_backbone_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Bare:
        stem: str = "cifar"

    with pytest.raises(
        ConfigError, match="with the fields backbone, num_classes, stem, Bare lacks backbone, num_classes"
    ):
        register_method(MethodRecord(name="bare", config=Bare, build=Byol, views="byol", trains_classifier=True))
    assert "bare" not in METHODS


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_views_that_exist(name: str) -> None:
    record = _RECORDS[METHODS[name]]
    assert {record.views, *record.also_takes} <= VIEWS.keys()
    assert VIEWS[record.views].labelled == record.trains_classifier
