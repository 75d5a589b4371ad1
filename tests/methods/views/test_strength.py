"""Strengths that somebody asks for are those of the views, and nothing else changes."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sts_core import ConfigError
from sts_core.fields import outcome_relevant
from sts_methods import AugmentationConfig, DataConfig, build_training_data
from sts_methods.views.specs import VIEWS, CropView

NAMES = [setting.name for setting in fields(AugmentationConfig)]
OF_STRONG = {"shift_share", "num_strong_operations", "strong_operation_probability", "cutout_share"}


def data(views: str = "byol", **asked: Any) -> DataConfig:
    return DataConfig(dataset="images", root="photos", views=views, augmentation=AugmentationConfig(**asked))


@pytest.mark.parametrize("name", NAMES)
def test_a_strength_changes_its_own_number_in_every_view_that_has_one(name: str) -> None:
    views = "fixmatch" if name in OF_STRONG else "dino"
    before = data(views).make_views()
    asked: Any = (
        3 if name.startswith("num") else (0.375,) if name in ("blur_probability", "solarise_probability") else 0.375
    )
    attribute = AugmentationConfig.__dataclass_fields__[name].metadata["of"]
    value = (0.1, 0.375) if attribute == "blur_sigma" else 0.375 if isinstance(asked, tuple) else asked
    after = data(views, **{name: asked}).make_views()
    assert after == tuple(replace(v, **{attribute: value}) if hasattr(v, attribute) else v for v in before)
    assert after != before


def test_each_view_may_have_a_probability_of_its_own() -> None:
    views = data("dino", blur_probability=(0.9, 0.2), solarise_probability=(0.0, 0.3, 0.1)).make_views()
    crops = [view for view in views if isinstance(view, CropView)]
    assert [view.blur for view in crops] == [0.9] + [0.2] * 9
    assert [view.solarise for view in crops] == [0.0, 0.3] + [0.1] * 8


@pytest.mark.parametrize("name", VIEWS)
def test_without_a_wish_views_and_digests_are_what_they_were(name: str) -> None:
    config = data(name)
    assert config.make_views() == VIEWS[name].make("photographs", image_size=32, num_local=8)
    assert "augmentation" not in outcome_relevant(config)
    asked = replace(config, augmentation=AugmentationConfig(flip_probability=0.25))
    assert outcome_relevant(asked)["augmentation"] == {"flip_probability": 0.25}


def test_views_without_any_augmentation_are_the_image_itself(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=pixels)
    none = {name: (0.0,) if name.startswith(("blur", "solarise")) else 0.0 for name in NAMES if "probability" in name}
    del none["strong_operation_probability"]
    config = replace(
        data("byol", **none), dataset="arrays", root=str(tmp_path / "mine.npz"), image_size=16, crop_scale_min=1.0,
        mean=(0.0,) * 3, std=(1.0,) * 3,
    )  # fmt: skip
    (batch,) = next(build_training_data(config, seed=0, global_batch_size=8).steps(0))
    for view in batch.views:
        assert np.array_equal((view * 255).round().permute(0, 2, 3, 1).numpy(), pixels[batch.indices])
    (batch,) = next(
        build_training_data(replace(config, augmentation=AugmentationConfig()), seed=0, global_batch_size=8).steps(0)
    )
    assert not np.allclose(batch.views[0], batch.views[1])


@pytest.mark.parametrize(
    ("views", "asked", "message"),
    [
        ("byol", {"jitter_hue": 0.6}, r"jitter_hue must be in \[0, 0.5\], got 0.6"),
        ("byol", {"grayscale_probability": -0.1}, r"grayscale_probability must be in \[0, 1\], got -0.1"),
        ("byol", {"blur_probability": (0.5, 1.5)}, r"blur_probability must be in \[0, 1\], got \(0.5, 1.5\)"),
        ("byol", {"blur_probability": ()}, r"blur_probability must be in \[0, 1\], got \(\)"),
        ("byol", {"jitter_brightness": float("nan")}, "jitter_brightness must be"),
        ("byol", {"cutout_share": 0.2}, "cutout_share is for weak and strong views, byol has none of them, got 0.2"),
        ("fixmatch", {"jitter_hue": 0.2}, "jitter_hue is for crops, fixmatch has none of them, got 0.2"),
    ],
)
def test_a_strength_outside_its_domain_is_refused(views: str, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        data(views, **asked)
