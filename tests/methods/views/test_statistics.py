"""Whole views against the references' own transforms: step by step with equal parameters, and in distribution."""

import os
import random
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from scipy.stats import ks_2samp
from torchvision import transforms

from sts_methods.data.batches import normalise
from sts_methods.data.datasets import IMAGENET_STATISTICS
from sts_methods.draws import FloatArray, Keys
from sts_methods.views import per_image
from sts_methods.views.batched import CropDraws, crop_batch, draw_crop_view
from sts_methods.views.colour import ORDERS
from sts_methods.views.specs import CropView, Views, digit_crop, multi_crop, two_views, weak_and_strong
from tests.methods.views import pillow_reference as reference
from tests.methods.views.one_view import augment_batch

SIZE = 64


def keys_of(num: int) -> Keys:
    return Keys(np.arange(num), np.zeros(num, dtype=np.int64))


def draws_of(view: CropView, pictures: torch.Tensor, seed: int = 0) -> CropDraws:
    heights, widths = (np.full(len(pictures), side) for side in pictures.shape[2:])
    return draw_crop_view(view, keys_of(len(pictures)), seed=seed, stream=16, heights=heights, widths=widths)


def reference_view(picture: torch.Tensor, view: CropView, draws: CropDraws, row: int) -> FloatArray:
    """The view by Pillow and torchvision in the order of main_moco.py, with our parameters."""
    image = reference.crop_resize(reference.pillow(picture), draws.boxes[row], view.size, view.interpolation)
    if draws.jitter.applied[row]:
        image = reference.jitter(image, ORDERS[draws.jitter.order[row]], draws.jitter.factors[row])
    if draws.grayscale[row]:
        image = image.convert("L").convert("RGB")
    if draws.sigma[row] > 0:
        image = reference.blur(image, float(draws.sigma[row]))
    if draws.solarise[row]:
        image = ImageOps.solarize(image)
    if draws.flip[row]:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).astype(np.float64)


def views_of(pictures: torch.Tensor, view: CropView, keys: Keys, *, seed: int, batched: bool) -> FloatArray:
    """The views [N, H, W, 3] as the device makes them, or as the loader does."""
    if batched:
        return augment_batch(pictures, view, keys, seed=seed, stream=16).permute(0, 2, 3, 1).double().numpy()
    heights, widths = (np.full(len(pictures), side) for side in pictures.shape[2:])
    draws = draw_crop_view(view, keys, seed=seed, stream=16, heights=heights, widths=widths)
    places = (torch.from_numpy(drawn) for drawn in (draws.boxes, draws.flip, draws.rotation))
    crops = crop_batch(pictures, view, *places)
    ours = crops.permute(0, 2, 3, 1).to(torch.uint8).contiguous().numpy()
    per_image.finish_crops_(ours, view, draws)
    return ours.astype(np.float64)


VIEWS = {"moco": two_views(views="moco", image_size=SIZE)[0], "byol": two_views(views="byol", image_size=SIZE)[1]}


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("recipe", VIEWS)
def test_the_whole_chain_is_the_references_within_point_six_levels(recipe: str, batched: bool) -> None:
    view = VIEWS[recipe]
    pictures = reference.photographs(32)
    draws = draws_of(view, pictures)
    assert draws.solarise.any() == (recipe == "byol")
    ours = views_of(pictures, view, keys_of(32), seed=0, batched=batched)
    distance = [np.abs(ours[row] - reference_view(pictures[row], view, draws, row)).mean() for row in range(32)]
    assert np.mean(distance) <= 0.6


def statistics(view: FloatArray) -> list[float]:
    """A dozen numbers that describe a picture [H, W, 3]: level, spread, colour, detail and place."""
    gray = view @ [0.299, 0.587, 0.114]
    chroma = view.max(axis=2) - view.min(axis=2)
    half = view.shape[1] // 2
    return [
        *view.mean(axis=(0, 1)), *view.std(axis=(0, 1)), chroma.mean(), chroma.std(),
        np.abs(np.diff(gray, axis=0)).mean(), np.abs(np.diff(gray, axis=1)).mean(),
        gray[:, :half].mean() - gray[:, half:].mean(), (gray > 250).mean(),
    ]  # fmt: skip


class PillowBlur:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def transform_of(recipe: str) -> transforms.Compose:
    """MoCo v2's augmentation (main_moco.py, --aug-plus) or that of BYOL's second view, without the normalisation."""
    moco = recipe == "moco"
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.2 if moco else 0.08, 1.0)),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4 if moco else 0.2, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([PillowBlur()], p=0.5 if moco else 0.1),
            transforms.RandomSolarize(threshold=128, p=0.0 if moco else 0.2),
            transforms.RandomHorizontalFlip(),
        ]
    )


def sources(num: int) -> torch.Tensor:
    """Real photographs when STS_DATA points to them, else made-up ones; [num, 3, 128, 128]."""
    archive = Path(os.environ.get("STS_DATA", "/nonexistent")) / "imagenette128_subset.tar"
    if not archive.is_file():
        made: torch.Tensor = reference.photographs(num, height=128, width=128)
        return made
    with tarfile.open(archive) as tar:
        names = sorted(name for name in tar.getnames() if name.endswith((".jpg", ".JPEG", ".jpeg")))[: num * 3 : 3]
        images = [Image.open(tar.extractfile(name)).convert("RGB").resize((128, 128)) for name in names]  # type: ignore[arg-type]
    return torch.from_numpy(np.stack([np.asarray(image) for image in images])).permute(0, 3, 1, 2)


def reference_statistics(recipe: str, pictures: torch.Tensor, rounds: int, seed: int) -> FloatArray:
    random.seed(seed)
    transform = transform_of(recipe)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        images = [Image.fromarray(x.permute(1, 2, 0).contiguous().numpy()) for x in pictures]
        views = [transform(image) for _ in range(rounds) for image in images]
    return np.array([statistics(np.asarray(view).astype(np.float64)) for view in views])


def our_statistics(pictures: torch.Tensor, rounds: int, view: CropView) -> FloatArray:
    """Of views as the device and as the loader make them, by turns."""
    made = []
    for epoch in range(rounds):
        keys = Keys(np.arange(len(pictures)), np.full(len(pictures), epoch))
        made += [statistics(x) for x in views_of(pictures, view, keys, seed=1, batched=epoch % 2 == 0)]
    return np.array(made)


def smallest_p(one: FloatArray, two: FloatArray) -> float:
    return min(float(ks_2samp(one[:, k], two[:, k]).pvalue) for k in range(one.shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "weaker"), [("moco", {"blur": 0.0}), ("byol", {"solarise": 0.0})])
def test_views_are_distributed_as_the_references(recipe: str, weaker: dict[str, float]) -> None:
    """Two-sample Kolmogorov-Smirnov tests of twelve statistics, corrected for their number."""
    pictures, rounds = sources(100), 10
    theirs = reference_statistics(recipe, pictures, rounds, seed=1)
    threshold = 0.01 / theirs.shape[1]
    view = VIEWS[recipe]
    assert smallest_p(our_statistics(pictures, rounds, view), theirs) > threshold
    control = reference_statistics(recipe, pictures, rounds, seed=2)
    assert smallest_p(control, theirs) > threshold, "the control must pass"
    less = replace(view, **weaker)  # type: ignore[arg-type]
    assert smallest_p(our_statistics(pictures, rounds, less), theirs) < threshold, f"the test must see {weaker}"


@pytest.mark.parametrize("recipe", ["byol", "byol_deepmind", "dino", "fixmatch", "digits"])
def test_views_are_computed_on_the_device_of_the_images(recipe: str) -> None:
    """On torch's meta device, which computes shapes only and refuses tensors that were left on the CPU."""
    known: dict[str, Views] = {
        "byol": two_views(views="byol", image_size=32),
        "byol_deepmind": two_views(views="byol_deepmind", image_size=32),
        "dino": multi_crop(image_size=32, num_local=1),
        "fixmatch": weak_and_strong(image_size=32),
        "digits": (digit_crop(32),) * 2,
    }
    images = torch.zeros(40, 3, 32, 32, dtype=torch.uint8, device="meta")
    for number, view in enumerate(known[recipe]):
        made = augment_batch(images, view, keys_of(40), seed=0, stream=16 + number)
        assert normalise(made, IMAGENET_STATISTICS).device.type == "meta"
        assert made.shape == (40, 3, view.size, view.size)
