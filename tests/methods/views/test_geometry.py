"""Crops and shifts: drawn as torchvision draws them, computed as Pillow computes them."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torchvision.transforms import RandomResizedCrop

from sts_methods.draws import uniforms
from sts_methods.views import per_image
from sts_methods.views.geometry import CROP_DRAWS, crop_resize, draw_crops, rotate, shift_flip, shifted_positions
from tests.methods.views import pillow_reference as reference

BOXES = np.array([[0, 0, 96, 128], [10, 20, 41, 53], [3, 5, 90, 70], [60, 100, 17, 23], [50, 0, 46, 128]])
FLIP = np.array([False, True, False, True, True])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [32, 100])
def test_crop_and_resize_are_pillows_within_one_level(size: int, interpolation: str) -> None:
    pictures = reference.photographs(5)
    boxes, flip = torch.from_numpy(BOXES), torch.from_numpy(FLIP)
    ours = crop_resize(pictures, boxes, flip, size=size, interpolation=interpolation)  # type: ignore[arg-type]
    for row, picture in enumerate(pictures):
        expected = reference.pixels(reference.crop_resize(reference.pillow(picture), BOXES[row], size, interpolation))
        expected = expected[:, ::-1] if FLIP[row] else expected
        single = np.empty((size, size, 3), dtype=np.uint8)
        source = picture.permute(1, 2, 0).numpy()
        per_image.crop_resize_into(single, source, BOXES[row], bool(FLIP[row]), interpolation)  # type: ignore[arg-type]
        for made in (reference.as_pixels(ours[row]), reference.as_pixels(single)):
            assert np.abs(made - expected).max() <= 1
            assert abs(np.mean(made - expected)) <= 0.05


def test_crops_are_distributed_as_torchvisions() -> None:
    num, height, width = 3000, 90, 140
    u = uniforms(seed=3, stream=16, epochs=0, indices=np.arange(num), num=CROP_DRAWS)
    sides = (np.full(num, height), np.full(num, width))
    ours = draw_crops(u, heights=sides[0], widths=sides[1], scale=(0.2, 1.0), ratio=(3 / 4, 4 / 3))
    image = torch.empty(3, height, width)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = np.array([RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(num)])
    for column in range(4):
        assert ks_2samp(ours[:, column], theirs[:, column]).pvalue > 0.001
    wrong = draw_crops(u, heights=sides[0], widths=sides[1], scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    assert ks_2samp(wrong[:, 2], theirs[:, 2]).pvalue < 1e-6, "the test must see a different scale"


def test_a_picture_too_narrow_for_every_crop_gives_the_largest_central_one() -> None:
    u = uniforms(seed=0, stream=16, epochs=0, indices=np.arange(4), num=CROP_DRAWS)
    boxes = draw_crops(u, heights=np.full(4, 200), widths=np.full(4, 4), scale=(0.9, 1.0), ratio=(3 / 4, 4 / 3))
    assert boxes.tolist() == [[97, 0, 5, 4]] * 4


def test_shift_and_flip_equal_a_reflected_pad_and_crop() -> None:
    images = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).reshape(2, 3, 8, 8)
    shifts, flip = np.array([[0, 3], [4, 1]]), np.array([True, False])
    positions = shifted_positions(shifts, flip, padding=2, height=8, width=8)
    made = shift_flip(images.permute(0, 2, 3, 1), *positions).permute(0, 3, 1, 2)
    for row, (top, left) in enumerate([(0, 3), (4, 1)]):
        source = images[row].flip(-1) if row == 0 else images[row]
        padded = torch.nn.functional.pad(source.float()[None], (2, 2, 2, 2), mode="reflect")[0]
        assert torch.equal(made[row].float(), padded[:, top : top + 8, left : left + 8])


def test_a_turn_by_ninety_degrees_is_a_turned_picture() -> None:
    image = torch.arange(3 * 6 * 6, dtype=torch.float32).reshape(1, 3, 6, 6)
    turned = rotate(image, torch.tensor([torch.pi / 2]))
    assert torch.equal(turned, image.rot90(1, dims=(2, 3))) or torch.equal(turned, image.rot90(-1, dims=(2, 3)))
    assert torch.equal(rotate(image, torch.zeros(1)), image)


@pytest.mark.parametrize(("height", "width"), [(60, 91), (91, 60), (64, 64)])
def test_resize_centre_is_torchvisions_resize_and_centre_crop(height: int, width: int) -> None:
    from torchvision.transforms import CenterCrop, Compose, Resize

    picture = reference.photograph(0, height=height, width=width)
    expected = Compose([Resize(37), CenterCrop(32)])(reference.pillow(picture))
    made = per_image.resize_centre(picture, size=32, margin=256 / 224)
    assert made.shape == (32, 32, 3)
    assert np.abs(made.astype(int) - reference.pixels(expected)).max() <= 1
