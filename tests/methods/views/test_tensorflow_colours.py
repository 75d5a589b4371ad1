"""The colour jitter of BYOL's authors, batched and per picture, against their formulas in float64."""

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch

from sts_methods.draws import FloatArray, IntArray, Keys
from sts_methods.views import colour, per_image
from sts_methods.views.batched import draw_crop_view, finish_crops_, plan_crops, view_groups
from sts_methods.views.specs import two_views
from tests.methods.views import pillow_reference as reference
from tests.methods.views.one_view import augment_batch

NUM, SIDE = 48, 20
MadeBy = Callable[[torch.Tensor, colour.JitterDraws], FloatArray]


def in_hsv(picture: FloatArray, step: int, factor: float) -> FloatArray:
    """Saturation or hue of each pixel changed by Python's own conversions."""
    pixels = [colorsys.rgb_to_hsv(*pixel) for pixel in picture.reshape(-1, 3).tolist()]
    changed = [(h, min(s * factor, 1.0), v) if step == 2 else ((h + factor) % 1.0, s, v) for h, s, v in pixels]
    return np.array([colorsys.hsv_to_rgb(*pixel) for pixel in changed]).reshape(picture.shape)


def expected(picture: IntArray, order: IntArray, factors: FloatArray) -> FloatArray:
    """deepmind-research byol/utils/augmentations.py, _color_transform_single_image: float values in [0, 1]."""
    x = picture / 255
    for step in order:
        if step == 0:
            x = x + (factors[0] - 1)
        elif step == 1:
            x = x.mean(axis=(0, 1)) + factors[1] * (x - x.mean(axis=(0, 1)))
        else:
            x = in_hsv(x, step, factors[step])
        x = np.clip(x, 0, 1)
    return 255 * x


def draws() -> colour.JitterDraws:
    rng = np.random.default_rng(0)
    factors = np.column_stack([1 + rng.uniform(-0.4, 0.4, (NUM, 3)), rng.uniform(-0.1, 0.1, NUM)])
    return colour.JitterDraws(np.arange(NUM) % 6 != 5, np.arange(NUM) % 24, factors)


def batched(pictures: torch.Tensor, drawn: colour.JitterDraws) -> FloatArray:
    made = colour.jitter_(pictures.float(), colour.plan_jitter(drawn), "tensorflow")
    return made.permute(0, 2, 3, 1).double().numpy()


def one_by_one(pictures: torch.Tensor, drawn: colour.JitterDraws) -> FloatArray:
    made = pictures.permute(0, 2, 3, 1).contiguous().numpy().copy()
    for row in np.flatnonzero(drawn.applied):
        per_image.tensorflow_jitter_(made[row], colour.ORDERS[drawn.order[row]].tolist(), drawn.factors[row])
    return made.astype(np.float64)


@pytest.mark.parametrize("made_by", [batched, one_by_one])
def test_every_order_of_the_four_steps_is_the_authors_to_the_last_rounding(made_by: MadeBy) -> None:
    pictures, drawn = reference.photographs(NUM, height=SIDE, width=SIDE), draws()
    made = made_by(pictures, drawn)
    for row in range(NUM):
        picture = reference.as_pixels(pictures[row])
        order = colour.ORDERS[drawn.order[row]] if drawn.applied[row] else np.array([], dtype=np.int64)
        assert np.abs(made[row] - expected(picture, order, drawn.factors[row])).max() <= 0.501


@pytest.mark.parametrize("made_by", [batched, one_by_one])
def test_gray_pixels_stay_gray_and_saturated_ones_saturate_no_further(made_by: MadeBy) -> None:
    colours = torch.tensor([[90, 90, 90], [255, 0, 0], [0, 40, 200], [0, 0, 0]], dtype=torch.uint8)
    pictures = colours.T.reshape(1, 3, 2, 2)
    factors = np.array([[1.0, 1.0, 1.2, 0.0]])
    drawn = colour.JitterDraws(np.array([True]), np.array([0]), factors, (2,))
    assert made_by(pictures, drawn).reshape(4, 3).tolist() == colours.tolist()


@pytest.mark.parametrize("number", [0, 1])
def test_the_loader_and_the_device_make_the_same_views(number: int) -> None:
    """To a level here and there, as the blur after the jitter rounds once more."""
    view = two_views(views="byol_deepmind", image_size=SIDE)[number]
    pictures, sides = reference.photographs(NUM, height=SIDE, width=SIDE), np.full(NUM, SIDE)
    keys = Keys(np.arange(NUM), np.zeros(NUM, dtype=np.int64))
    drawn = draw_crop_view(view, keys, seed=0, stream=16, heights=sides, widths=sides)
    on_device = finish_crops_(pictures.float(), plan_crops(view, [drawn])).permute(0, 2, 3, 1).numpy()
    by_loader = pictures.permute(0, 2, 3, 1).contiguous().numpy().copy()
    per_image.finish_crops_(by_loader, view, drawn)
    assert np.abs(on_device - by_loader.astype(np.float64)).mean() < 0.1


def test_views_of_two_arithmetics_are_not_made_together() -> None:
    views = tuple(two_views(views=recipe, image_size=SIDE)[1] for recipe in ("byol", "byol_deepmind"))  # type: ignore[arg-type]
    assert view_groups(views, torch.device("cuda", 0)) == ((0,), (1,))


def test_brightness_moves_the_mean_of_images_twice_as_far_as_pillows() -> None:
    """By 45 levels in the authors' views and 22 in torchvision's, as standard deviations over photographs."""
    pictures = reference.photographs(300, height=48, width=48)
    keys = Keys(np.arange(300), np.zeros(300, dtype=np.int64))
    spread = {}
    for recipe in ("byol", "byol_deepmind"):
        view = two_views(views=recipe, image_size=32)[0]  # type: ignore[arg-type]
        sides = np.full(300, 48)
        drawn = draw_crop_view(view, keys, seed=0, stream=16, heights=sides, widths=sides)
        shift = augment_batch(pictures, view, keys, seed=0, stream=16).mean(dim=(1, 2, 3)) - torch.stack(
            [
                picture[:, top : top + height, left : left + width].float().mean()
                for picture, (top, left, height, width) in zip(pictures, drawn.boxes.tolist(), strict=True)
            ]
        )
        spread[recipe] = float(shift.std())
    assert 17 < spread["byol"] < 27
    assert 42 < spread["byol_deepmind"] < 55
