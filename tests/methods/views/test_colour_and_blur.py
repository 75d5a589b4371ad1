"""Colour and blur, batched and per picture, against Pillow: the gates are levels of 0..255."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import ImageOps
from sklearn.datasets import load_sample_images

from sts_methods.draws import IntArray, Keys
from sts_methods.views import batched as views_batched
from sts_methods.views import colour, per_image
from sts_methods.views.batched import draw_crop_view
from sts_methods.views.blur import blur, blur_taps, half_width
from sts_methods.views.specs import CropView
from tests.methods.views import pillow_reference as reference

FACTORS = (0.61, 0.83, 1.0, 1.17, 1.39)
SHIFTS = (-0.1, -0.037, 0.0, 0.02, 0.1)

MadeBy = Callable[[torch.Tensor, int, tuple[float, ...]], list[IntArray]]


@pytest.fixture(scope="module")
def pictures() -> torch.Tensor:
    made: torch.Tensor = reference.photographs(5)
    return made


def batched(pictures: torch.Tensor, step: int, factors: tuple[float, ...]) -> list[IntArray]:
    columns = np.zeros((len(factors), 4))
    columns[:, step] = factors
    first = int(np.flatnonzero(colour.ORDERS[:, 0] == step)[0])
    draws = colour.JitterDraws(np.ones(len(factors), bool), np.full(len(factors), first), columns, (step,))
    made = colour.jitter_(pictures.float(), colour.plan_jitter(draws))
    return list(made.permute(0, 2, 3, 1).numpy().astype(np.int64))


def one_by_one(pictures: torch.Tensor, step: int, factors: tuple[float, ...]) -> list[IntArray]:
    made = [x.permute(1, 2, 0).numpy().copy() for x in pictures]
    for picture, factor in zip(made, factors, strict=True):
        row = np.full((1, 4), factor)
        per_image.jitter_(picture, [step], per_image.colour_matrices(row)[0], int(factor * 255) % 256)
    return [picture.astype(np.int64) for picture in made]


@pytest.mark.parametrize("made_by", [batched, one_by_one])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_brightness_contrast_and_saturation_are_pillows_within_one_level(
    pictures: torch.Tensor, step: int, made_by: MadeBy
) -> None:
    for ours, picture, factor in zip(made_by(pictures, step, FACTORS), pictures, FACTORS, strict=True):
        expected = reference.pixels(reference.JITTER[step](reference.pillow(picture), factor))
        assert np.abs(ours - expected).max() <= 1
        assert abs(np.mean(ours - expected)) <= 0.1, "a bias would add up over the chain"


@pytest.mark.parametrize("made_by", [batched, one_by_one])
def test_hue_is_pillows_within_half_a_level_on_average(pictures: torch.Tensor, made_by: MadeBy) -> None:
    for ours, picture, shift in zip(made_by(pictures, 3, SHIFTS), pictures, SHIFTS, strict=True):
        expected = reference.pixels(reference.JITTER[3](reference.pillow(picture), shift))
        assert np.abs(ours - expected).mean() <= 0.5


def test_saturation_on_the_host_leaves_gray_pixels_as_they_are() -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, axis=2)
    factors = np.stack([np.full(200, 1.0), np.full(200, 1.0), np.linspace(0.2, 1.8, 200), np.zeros(200)], axis=1)
    for matrices in per_image.colour_matrices(factors):
        picture = gray.copy()
        per_image.jitter_(picture, [2], matrices, 0)
        assert np.array_equal(picture, gray)


def test_jitter_applies_each_pictures_own_order() -> None:
    pictures = reference.photographs(24, height=32, width=32)
    rng = np.random.default_rng(0)
    factors = np.column_stack([rng.uniform(0.6, 1.4, (24, 3)), rng.uniform(-0.1, 0.1, 24)])
    draws = colour.JitterDraws(np.arange(24) % 5 != 4, np.arange(24), factors)
    ours = colour.jitter_(pictures.float(), colour.plan_jitter(draws))
    for row in range(24):
        expected = reference.pillow(pictures[row])
        if draws.applied[row]:
            expected = reference.jitter(expected, colour.ORDERS[row], factors[row])
        assert np.abs(reference.as_pixels(ours[row]) - reference.pixels(expected)).mean() <= 0.6


def test_grayscale_is_pillows_and_touches_only_the_chosen(pictures: torch.Tensor) -> None:
    chosen = np.array([True, False, True, False, False])
    ours = colour.grayscale_(pictures.float(), colour.rows_of(chosen))
    for row, picture in enumerate(pictures):
        image = reference.pillow(picture)
        expected = reference.pixels(image.convert("L").convert("RGB") if chosen[row] else image)
        assert np.abs(reference.as_pixels(ours[row]) - expected).max() <= (1 if chosen[row] else 0)


@pytest.mark.parametrize("batched", [True, False])
def test_solarise_is_pillows_on_every_level_and_touches_only_the_chosen(batched: bool) -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(8, 3, 1, 1)
    view = CropView(size=16, jitter=0.0, grayscale=0.0, blur=0.0, solarise=0.5)
    keys, sides = Keys(np.arange(8), np.zeros(8, dtype=np.int64)), np.full(8, 16)
    draws = draw_crop_view(view, keys, seed=0, stream=16, heights=sides, widths=sides)
    assert 0 < draws.solarise.sum() < 8
    if batched:
        plan = views_batched.plan_crops(view, [draws])
        ours = views_batched.finish_crops_(levels.float(), plan).permute(0, 2, 3, 1).numpy()
    else:
        ours = levels.permute(0, 2, 3, 1).contiguous().numpy()
        per_image.finish_crops_(ours, view, draws)
    image = reference.pillow(levels[0])
    for row, chosen in enumerate(draws.solarise):
        expected = reference.pixels(ImageOps.solarize(image, threshold=128) if chosen else image)
        assert np.array_equal(ours[row], expected)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 1.4, 1.7, 2.0])
def test_blur_is_pillows_within_three_levels(pictures: torch.Tensor, sigma: float) -> None:
    taps = torch.from_numpy(blur_taps(np.full(5, sigma), half=half_width(2.0))).float()
    ours = blur(pictures.float(), taps)
    for row, picture in enumerate(pictures):
        expected = reference.pixels(reference.blur(reference.pillow(picture), sigma))
        single = reference.as_pixels(picture).astype(np.uint8)
        per_image.blur_(single, blur_taps(np.array([sigma]), half=half_width(sigma))[0], reach=half_width(sigma))
        for made in (reference.as_pixels(ours[row]), reference.as_pixels(single)):
            # At the border Pillow repeats the edge before each of its three passes, we before the first.
            assert np.abs(made - expected)[6:-6, 6:-6].max() <= 3
            assert np.abs(made - expected).mean() <= 0.7


def mean_laplacian(picture: reference.Array) -> float:
    gray = picture @ [0.299, 0.587, 0.114]
    neighbours = gray[:-2, 1:-1] + gray[2:, 1:-1] + gray[1:-1, :-2] + gray[1:-1, 2:]
    return float(np.abs(4 * gray[1:-1, 1:-1] - neighbours).mean())


def test_blurred_views_are_less_sharp_than_pillows_by_what_the_guide_says() -> None:
    """About 4 % (packages/sts-methods/docs/data.md): Pillow rounds after each of its six passes, we round once."""
    ours, pillows = [], []
    for photograph in load_sample_images().images:
        picture = np.ascontiguousarray(photograph[:224, :224])
        for sigma in np.linspace(0.1, 2.0, 8):
            single = picture.copy()
            per_image.blur_(single, blur_taps(sigma[None], half=half_width(2.0))[0], reach=half_width(2.0))
            ours.append(mean_laplacian(single))
            pillows.append(mean_laplacian(reference.pixels(reference.blur(reference.pillow(picture), float(sigma)))))
    assert 0.94 < sum(ours) / sum(pillows) < 0.98


def test_blur_taps_sum_to_one_and_have_the_asked_variance() -> None:
    sigma = np.array([0.3, 0.9, 1.5, 2.0])
    taps = blur_taps(sigma, half=6)
    offsets = np.arange(-6, 7)
    assert np.allclose(taps.sum(axis=1), 1.0)
    assert np.allclose((taps * offsets**2).sum(axis=1), sigma**2)
    assert np.allclose(blur_taps(np.zeros(1), half=3), [[0, 0, 0, 1, 0, 0, 0]])
