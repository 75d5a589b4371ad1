"""One corrupted image: the published strengths, and a pure function of its key."""

import ast
import inspect
import sys
from typing import Any

import numpy as np
import pytest

from sts_core.errors import ConfigError
from sts_eval.corruptions.benchmark import (
    ALEXNET_ERRORS,
    ALL_CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    MAIN_CORRUPTIONS,
    SEVERITY_PARAMETERS,
)
from sts_eval.corruptions.functions import corrupt_image, corruption_key, elastic_transform
from tests import processes

pytest.importorskip("imagecorruptions", reason="generating corruptions needs the extra sts-eval[corruptions]")

PUBLISHED: dict[str, Any] = dict(SEVERITY_PARAMETERS)


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    rows, columns = np.mgrid[:64, :64]
    pattern = np.stack([rows * 4, columns * 4, (rows * columns) % 256], axis=-1)
    return pattern.astype(np.uint8)


def parameters_in_library(name: str) -> list[Any]:
    """The list of strengths written in the library's function: `c = [...][severity - 1]`."""
    from imagecorruptions import corruptions

    tree = ast.parse(inspect.getsource(getattr(corruptions, name)))
    for node in ast.walk(tree):
        value = node.value.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) else None
        if isinstance(value, ast.List):
            code = compile(ast.Expression(value), name, "eval")
            return list(eval(code, {"np": np}))
    raise AssertionError(f"{name} has no list of strengths")


def test_there_are_fifteen_corruptions_four_extra_ones_and_an_alexnet_error_for_each_of_the_fifteen() -> None:
    assert len(MAIN_CORRUPTIONS) == 15
    assert len(EXTRA_CORRUPTIONS) == 4
    assert set(ALEXNET_ERRORS) == set(MAIN_CORRUPTIONS)
    assert set(SEVERITY_PARAMETERS) == set(ALL_CORRUPTIONS)
    assert all(len(values) == 5 for values in SEVERITY_PARAMETERS.values())


@pytest.mark.parametrize("name", [name for name in ALL_CORRUPTIONS if name not in ("zoom_blur", "elastic_transform")])
def test_the_library_has_the_published_strengths(name: str) -> None:
    assert parameters_in_library(name) == list(SEVERITY_PARAMETERS[name])


def test_the_library_has_the_published_zoom_factors() -> None:
    for found, published in zip(parameters_in_library("zoom_blur"), PUBLISHED["zoom_blur"], strict=True):
        assert np.array_equal(found, np.arange(*published))


@pytest.mark.parametrize("severity", [1, 5])
def test_gaussian_noise_is_clipped_normal_noise_of_the_published_deviation(image: np.ndarray, severity: int) -> None:
    deviation = PUBLISHED["gaussian_noise"][severity - 1]
    noise = np.random.RandomState(7).normal(size=image.shape, scale=deviation)
    expected = (np.clip(image / 255.0 + noise, 0, 1) * 255).astype(np.uint8)
    assert np.array_equal(corrupt_image(image, "gaussian_noise", severity, key=7), expected)


def test_contrast_shrinks_the_distance_from_the_mean_by_the_published_factor(image: np.ndarray) -> None:
    mean = (image / 255.0).mean(axis=(0, 1), keepdims=True)
    expected = (np.clip((image / 255.0 - mean) * 0.1 + mean, 0, 1) * 255).astype(np.uint8)
    assert np.array_equal(corrupt_image(image, "contrast", 4, key=0), expected)


def slow_elastic_transform(image: np.ndarray, severity: int, key: int) -> np.ndarray:
    """The release's recipe with an ordinary Gaussian filter, for a square image."""
    import cv2
    from scipy.ndimage import gaussian_filter, map_coordinates

    side = image.shape[0]
    amplitude, sigma, shift = (value * side / 224 for value in PUBLISHED["elastic_transform"][severity - 1])
    generator = np.random.default_rng(key)
    middle, reach = side // 2, side // 3
    low, high = middle - reach, middle + reach
    corners = np.array([[high, high], [high, low], [low, low]], dtype=np.float32)
    targets = corners + generator.uniform(-shift, shift, size=(3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, targets)
    moved = cv2.warpAffine(image.astype(np.float32), matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    noise = generator.uniform(-1, 1, size=(2, side, side))
    dy, dx = (amplitude * gaussian_filter(n, sigma, mode="reflect", truncate=3) for n in noise)
    rows, columns = np.mgrid[:side, :side]
    channels = [map_coordinates(moved[..., c], (rows + dy, columns + dx), order=1, mode="reflect") for c in range(3)]
    result: np.ndarray = np.clip(np.stack(channels, -1), 0, 255).astype(np.uint8)
    return result


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_elastic_transform_equals_the_releases_recipe(image: np.ndarray, severity: int) -> None:
    ours, slow = elastic_transform(image, severity, key=3), slow_elastic_transform(image, severity, 3)
    assert np.abs(ours.astype(int) - slow).max() <= 1
    assert np.mean(ours != image) > 0.3


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


@pytest.mark.parametrize("name", ["gaussian_noise", "impulse_noise", "glass_blur", "elastic_transform", "snow"])
def test_other_keys_give_other_images(image: np.ndarray, name: str) -> None:
    assert not np.array_equal(corrupt_image(image, name, 2, key=1), corrupt_image(image, name, 2, key=2))


def test_spatter_without_a_drop_leaves_the_image_as_it_is(image: np.ndarray) -> None:
    import imagecorruptions

    image = np.ascontiguousarray(image[:32, :32])
    np.random.seed(35)  # a layer that stays below the threshold of a drop
    with pytest.warns(RuntimeWarning, match="invalid value"):
        imagecorruptions.corrupt(image, 1, "spatter")
    assert np.array_equal(corrupt_image(image, "spatter", 1, key=35), image)
    np.random.seed(36)
    assert np.array_equal(corrupt_image(image, "spatter", 1, key=36), imagecorruptions.corrupt(image, 1, "spatter"))


def test_an_error_inside_the_library_leaves_the_global_generator_alone(
    image: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    import imagecorruptions

    monkeypatch.setattr(imagecorruptions, "corrupt", lambda *_, **__: 1 / 0)
    before = np.random.get_state(legacy=False)
    with pytest.raises(ZeroDivisionError):
        corrupt_image(image, "fog", 1, key=0)
    assert np.array_equal(before["state"]["key"], np.random.get_state(legacy=False)["state"]["key"])


def test_keys_differ_between_image_corruption_severity_and_seed_and_agree_between_processes() -> None:
    arguments = [(0, "a/1", "fog", 1), (1, "a/1", "fog", 1), (0, "a/2", "fog", 1), (0, "a/1", "snow", 1)]
    keys = [corruption_key(*a) for a in (*arguments, (0, "a/1", "fog", 2))]
    assert len(set(keys)) == 5
    code = "from sts_eval.corruptions.functions import corruption_key as k; print(k(0, 'a/1', 'fog', 1))"
    printed = processes.run([sys.executable, "-c", code]).stdout
    assert int(printed) == keys[0]


def test_an_unknown_corruption_and_a_wrong_severity_are_refused_in_one_sentence(image: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"must be one of gaussian_noise, .* got 'rain': correct the name"):
        corrupt_image(image, "rain", 1, key=0)
    with pytest.raises(ConfigError, match="from 1 to 5, got 6"):
        corrupt_image(image, "fog", 6, key=0)


def test_an_image_that_is_too_small_is_refused(image: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"at least 32 px, got uint8 \(16, 16, 3\)"):
        corrupt_image(image[:16, :16], "fog", 1, key=0)
