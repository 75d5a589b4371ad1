"""One corrupted image: what the release's scripts make of it, and a pure function of its key.

released_scripts.json was measured on `pattern` with hendrycks/robustness at 8190fe3 (make_imagenet_c.py at 224 px,
make_cifar_c.py at 32 px), ImageMagick 6.9.11 and numpy seeded with the severity: per corruption and severity the mean
level, the PSNR to the clean image and the mean product with fixed noise; of frost the first two over 100 draws.
"""

import colorsys
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from sts_core.errors import ConfigError
from sts_eval.corruptions.benchmark import ALEXNET_ERRORS, ALL_CORRUPTIONS, EXTRA_CORRUPTIONS, MAIN_CORRUPTIONS
from sts_eval.corruptions.functions import FUNCTIONS, corrupt_image, corruption_key
from sts_eval.corruptions.pixels import digital, filters, weather
from sts_eval.corruptions.pixels.strengths import TABLES, table_for
from tests import processes

RELEASED = json.loads((Path(__file__).parent / "released_scripts.json").read_text())
SIDES = [224, 32]


def pattern(side: int) -> np.ndarray:
    rows, columns = np.mgrid[:side, :side]
    colours = [rows * 200 // side, columns * 200 // side, rows * columns * 4 // side % 200]
    grain = np.random.RandomState(7).randint(0, 56, (side, side, 3))
    return (np.stack(colours, axis=-1) + grain).astype(np.uint8)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((a.astype(float) - b) ** 2)))


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return pattern(64)


def test_there_are_fifteen_corruptions_four_extra_ones_and_an_alexnet_error_for_each_of_the_fifteen() -> None:
    assert len(MAIN_CORRUPTIONS) == 15
    assert len(EXTRA_CORRUPTIONS) == 4
    assert set(ALEXNET_ERRORS) == set(MAIN_CORRUPTIONS)
    assert set(FUNCTIONS) == set(ALL_CORRUPTIONS)
    for table in TABLES.values():
        assert set(table) == set(ALL_CORRUPTIONS)
        assert all(len(values) == 5 for values in table.values())


def test_small_images_are_corrupted_as_cifar_10_c_and_others_as_imagenet_c() -> None:
    assert [table_for(side) for side in (32, 63, 64, 224)] == ["CIFAR-10-C", "CIFAR-10-C", "ImageNet-C", "ImageNet-C"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", [name for name in ALL_CORRUPTIONS if name != "frost"])
def test_every_severity_is_what_the_releases_script_makes_of_the_same_draws(name: str, side: int) -> None:
    clean = pattern(side)
    noise = np.random.RandomState(0).normal(size=clean.shape)
    for severity, (level, ratio, product) in enumerate(RELEASED[str(side)][name], 1):
        made = corrupt_image(clean, name, severity, key=severity)
        assert made.mean() == pytest.approx(level, abs=0.02)
        assert psnr(made, clean) == pytest.approx(ratio, abs=0.02)
        assert (made * noise).mean() == pytest.approx(product, abs=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_frost_is_as_strong_as_with_the_releases_photographs(side: int) -> None:
    clean = pattern(side)
    for severity, (level, ratio) in enumerate(RELEASED[str(side)]["frost"], 1):
        made = [corrupt_image(clean, "frost", severity, key=key) for key in range(100)]
        # The strength depends on which of five photographs is drawn, by about 2 dB: the draws are the release's.
        assert np.mean([psnr(one, clean) for one in made]) == pytest.approx(ratio, abs=0.12)
        assert np.mean(made) == pytest.approx(level, abs=0.4)


def test_frost_is_another_cut_of_the_texture_for_every_image(image: np.ndarray) -> None:
    made = [corrupt_image(image, "frost", 3, key=key) for key in range(20)]
    assert len({one.tobytes() for one in made}) == 20


def test_the_gaussian_filter_equals_scipys() -> None:
    noise = np.random.RandomState(0).uniform(size=(40, 50))
    for sigma in (0.05, 0.7, 6):
        slow = ndimage.gaussian_filter(noise, sigma, mode="nearest", truncate=4.0)
        assert np.allclose(filters.gaussian(noise, sigma), slow, atol=1e-12)


def test_the_zoom_equals_scipys_of_the_middle() -> None:
    noise = np.random.RandomState(0).uniform(size=(60, 60))
    for factor in (1.07, 1.75, 4.5):
        inside = math.ceil(60 / factor)
        top = (60 - inside) // 2
        slow = ndimage.zoom(noise[top : top + inside, top : top + inside], factor, order=1, mode="nearest")
        cut = (len(slow) - 60) // 2
        assert np.allclose(filters.zoom(noise, factor), slow[cut : cut + 60, cut : cut + 60], atol=1e-12)


@pytest.mark.parametrize("angle", [-130.0, -45.0, 0.0, 20.0, 45.0])
def test_motion_blur_is_a_weighted_sum_of_pixels_along_a_line(image: np.ndarray, angle: float) -> None:
    radius, sigma = 6, 2.5
    padded = np.pad(image.astype(float), ((20, 20), (20, 20), (0, 0)), mode="edge")
    total, slow = 0.0, np.zeros(image.shape)
    for tap in range(2 * radius + 1):
        weight = math.exp(-(tap**2) / (2 * sigma**2))
        right, down = (math.ceil(tap * f(math.radians(angle)) - 0.5) for f in (math.cos, math.sin))
        slow += weight * padded[20 + down : 84 + down, 20 + right : 84 + right]
        total += weight
    expected = np.floor(np.rint(257 * slow / total) / 257)
    assert np.mean(filters.motion_blur(image, radius, sigma, angle) != expected) < 0.002


def test_glass_blur_copies_neighbours_one_pixel_after_the_other() -> None:
    clean, (sigma, reach, rounds) = pattern(32), TABLES["CIFAR-10-C"]["glass_blur"][4]
    draws = np.random.RandomState(3)
    slow = (ndimage.gaussian_filter(clean / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
    for _ in range(rounds):
        for row in range(32 - reach, reach, -1):
            for column in range(32 - reach, reach, -1):
                right, down = draws.randint(-reach, reach, size=2)
                slow[row, column] = slow[row + down, column + right]
    expected = (ndimage.gaussian_filter(slow / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
    made = corrupt_image(clean, "glass_blur", 5, key=3)
    assert np.abs(made.astype(int) - expected).max() <= 1
    assert np.mean(made != expected) < 0.01


def test_brightness_and_saturate_change_one_coordinate_of_hsv() -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (32, 32, 3)).astype(np.uint8)
    pixels[:4] = pixels[:4, :, :1]  # gray, and black
    pixels[0, 0] = 0
    for severity in (1, 5):
        added = TABLES["CIFAR-10-C"]["brightness"][severity - 1]
        factor, offset = TABLES["CIFAR-10-C"]["saturate"][severity - 1]
        brighter, saturated = (corrupt_image(pixels, n, severity, key=0) for n in ("brightness", "saturate"))
        for row, column in np.ndindex(32, 32):
            h, s, v = colorsys.rgb_to_hsv(*(pixels[row, column] / 255))
            expected = np.array(colorsys.hsv_to_rgb(h, s, min(v + added, 1))) * 255
            assert np.abs(brighter[row, column] + 0.5 - expected).max() < 0.501
            expected = np.array(colorsys.hsv_to_rgb(h, min(max(s * factor + offset, 0), 1), v)) * 255
            assert np.abs(saturated[row, column] + 0.5 - expected).max() < 0.501


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_the_displacement_of_elastic_transform_is_filtered_noise_and_its_borders_are_mirrored(severity: int) -> None:
    _, sigma, _ = TABLES["ImageNet-C"]["elastic_transform"][severity - 1]
    noise = np.random.RandomState(1).uniform(-1, 1, size=(80, 60))
    slow = ndimage.gaussian_filter(noise, sigma, mode="reflect", truncate=3)
    assert np.allclose(digital._blur_matrix(80, sigma) @ noise @ digital._blur_matrix(60, sigma).T, slow, atol=1e-12)
    levels = np.random.RandomState(2).uniform(size=(80, 60, 3)).astype(np.float32)
    rows, columns = np.random.RandomState(3).uniform(-70, 140, size=(2, 80, 60))
    expected = [ndimage.map_coordinates(levels[..., c], (rows, columns), order=1, mode="reflect") for c in range(3)]
    assert np.allclose(digital._sample(levels, rows, columns), np.stack(expected, -1), atol=1e-5)


@pytest.mark.parametrize("name", ALL_CORRUPTIONS)
def test_equal_keys_give_equal_images_and_the_global_generator_is_left_alone(image: np.ndarray, name: str) -> None:
    np.random.seed(123)
    before = np.random.get_state()
    first = corrupt_image(image, name, 3, key=11)
    assert all(np.array_equal(a, b) for a, b in zip(before, np.random.get_state(), strict=True))
    np.random.seed(99)
    assert np.array_equal(first, corrupt_image(image, name, 3, key=11))
    assert first.dtype == np.uint8
    assert first.shape == image.shape
    assert not np.array_equal(first, image)


@pytest.mark.parametrize("name", ALL_CORRUPTIONS)
def test_images_need_not_be_square(name: str) -> None:
    oblong = np.ascontiguousarray(pattern(120)[:70])
    assert corrupt_image(oblong, name, 5, key=0).shape == oblong.shape


@pytest.mark.parametrize("name", ["gaussian_noise", "impulse_noise", "glass_blur", "elastic_transform", "snow"])
def test_other_keys_give_other_images(image: np.ndarray, name: str) -> None:
    assert not np.array_equal(corrupt_image(image, name, 2, key=1), corrupt_image(image, name, 2, key=2))


def test_spatter_without_a_drop_leaves_the_image_as_it_is() -> None:
    clean = pattern(32)
    without_drops = (0.1, 0.01, 1, 0.69, 0.6, 0)  # the layer stays below the threshold of a drop
    assert np.array_equal(weather.spatter(clean, without_drops, np.random.RandomState(0)), clean)


@pytest.mark.slow
def test_keys_differ_between_image_corruption_severity_and_seed_and_agree_between_processes() -> None:
    arguments = [(0, "a/1", "fog", 1), (1, "a/1", "fog", 1), (0, "a/2", "fog", 1), (0, "a/1", "snow", 1)]
    keys = [corruption_key(*a) for a in (*arguments, (0, "a/1", "fog", 2))]
    assert len(set(keys)) == 5
    code = "from sts_eval.corruptions.functions import corruption_key as k; print(k(0, 'a/1', 'fog', 1))"
    printed = processes.run([sys.executable, "-c", code]).stdout
    assert int(printed) == keys[0]


def test_an_unknown_corruption_and_a_wrong_severity_are_refused_in_one_sentence(image: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"must be one of gaussian_noise, .* got 'rain'"):
        corrupt_image(image, "rain", 1, key=0)
    with pytest.raises(ConfigError, match="from 1 to 5, got 6"):
        corrupt_image(image, "fog", 6, key=0)


def test_an_image_that_is_too_small_is_refused(image: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"at least 32 px, got uint8 \(16, 16, 3\)"):
        corrupt_image(image[:16, :16], "fog", 1, key=0)
