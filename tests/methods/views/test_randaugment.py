"""FixMatch's strong operations against Pillow, with the values of the reference implementation."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from sts_methods.draws import uniforms
from sts_methods.views.randaugment import (
    POOL,
    Operations,
    apply_operations_,
    cutout_,
    num_draws,
    plan_cutout,
    plan_operations,
    plan_strong,
    strengthen_,
)
from sts_methods.views.specs import StrongView
from tests.methods.views import pillow_reference as reference

SIZE = 32


def batch(num: int, size: int = SIZE) -> torch.Tensor:
    """uint8 [N, H, W, 3]."""
    pictures: torch.Tensor = reference.photographs(num, height=size, width=size)
    return pictures.permute(0, 2, 3, 1).contiguous()


def shifted(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def pillow_operation(name: str, image: Image.Image, level: int, sign: int) -> Image.Image:
    """One operation as FixMatch's reference applies it at `level` of 10."""
    enhance = 0.05 + 0.9 * level / 10
    shear, shift = sign * 0.3 * level / 10, int(sign * 0.3 * level / 10 * image.size[0])
    made: dict[str, Any] = {
        "auto_contrast": lambda: ImageOps.autocontrast(image),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(enhance),
        "colour": lambda: ImageEnhance.Color(image).enhance(enhance),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(enhance),
        "equalise": lambda: ImageOps.equalize(image),
        "identity": lambda: image,
        "posterise": lambda: ImageOps.posterize(image, int(4 * level / 10) + 4),
        "rotate": lambda: image.rotate(sign * int(30 * level / 10)),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(enhance),
        "shear_x": lambda: shifted(image, 1, shear, 0, 0, 1, 0),
        "shear_y": lambda: shifted(image, 1, 0, 0, shear, 1, 0),
        "solarise": lambda: ImageOps.solarize(image, 256 - int(256 * level / 10)),
        "translate_x": lambda: shifted(image, 1, 0, shift, 0, 1, 0),
        "translate_y": lambda: shifted(image, 1, 0, 0, 0, 1, shift),
    }
    result: Image.Image = made[name]()
    return result


@pytest.mark.parametrize("name", POOL)
def test_each_operation_is_pillows(name: str) -> None:
    pictures = batch(18)
    level, sign = np.tile(np.arange(1, 10), 2), np.repeat([-1, 1], 9)
    operations = Operations(np.full(18, POOL.index(name)), level, sign)
    ours = apply_operations_(pictures.clone(), plan_operations(operations, size=SIZE))
    for row, picture in enumerate(pictures):
        image = reference.pillow(picture.numpy())
        expected = reference.pixels(pillow_operation(name, image, int(level[row]), int(sign[row])))
        assert np.abs(ours[row].numpy() - expected).max() <= 1


@pytest.mark.parametrize("size", [SIZE, 29])  # the pictures fill whole words of memory, or do not
def test_each_picture_takes_its_own_operation(size: int) -> None:
    pictures = batch(len(POOL), size)
    operations = Operations(np.arange(len(POOL)), np.full(len(POOL), 5), np.ones(len(POOL), dtype=np.int64))
    together = apply_operations_(pictures.clone(), plan_operations(operations, size=size))
    for row in range(len(POOL)):
        own = plan_operations(operations[np.array([row])], size=size)
        alone = apply_operations_(pictures[row : row + 1].clone(), own)
        assert torch.equal(together[row], alone[0]), POOL[row]


@pytest.mark.parametrize("point", [(0.5, 0.5), (0.0, 0.99), (0.3, 0.1)])
def test_cutout_paints_the_references_square(point: tuple[float, float]) -> None:
    picture = batch(1)
    ours = cutout_(picture.clone(), plan_cutout(np.array([point]), share=0.5, size=SIZE))
    x0, y0 = (int(max(0, SIZE * u - 8)) for u in point)
    expected = reference.pillow(picture[0].numpy())
    ImageDraw.Draw(expected).rectangle((x0, y0, min(SIZE, x0 + 16), min(SIZE, y0 + 16)), (127, 127, 127))
    assert np.array_equal(ours[0].numpy(), reference.pixels(expected))


def test_operations_come_as_often_as_they_should() -> None:
    view = StrongView(size=SIZE, cutout=0.0)
    images = torch.randint(0, 256, (2000, SIZE, SIZE, 3), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    u = uniforms(seed=0, stream=17, epochs=0, indices=np.arange(len(images)), num=num_draws(view))
    made = strengthen_(images.clone(), plan_strong(view, u, size=SIZE))
    changed = made.ne(images).flatten(1).sum(dim=1) > 3  # a cutout of side 0 still paints one pixel
    # A draw is applied (½), and visible on noise unless it is the identity or auto-contrast (12/14).
    expected = 1 - (1 - 0.5 * 12 / 14) ** 2
    assert abs(changed.float().mean().item() - expected) < 0.04
