"""Views of a whole batch at once, on any device: every image with its own parameters."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sts_methods.draws import BoolArray, FloatArray, IntArray, Keys, uniforms
from sts_methods.views.blur import blur, blur_taps, half_width
from sts_methods.views.colour import (
    JitterDraws,
    JitterPlan,
    grayscale_,
    jitter_,
    plan_jitter,
    rows_of,
    solarise_,
)
from sts_methods.views.geometry import CROP_DRAWS, crop_resize, draw_crops, rotate, shift_flip, shifted_positions
from sts_methods.views.randaugment import StrongPlan, num_draws, plan_strong, strengthen_
from sts_methods.views.specs import CropView, StrongView, View, Views, WeakView

GRAY = 127  # fill of erased squares (kekmodel, dataset/randaugment.py)
_EXTRA_DRAWS = 15
WEAK_DRAWS = 3


@dataclass(frozen=True)
class CropDraws:
    """The parameters of one CropView for each image of a batch, all [N, ...], on the host."""

    boxes: IntArray
    flip: BoolArray
    jitter: JitterDraws
    grayscale: BoolArray
    sigma: FloatArray
    """Standard deviation of the blur, 0 where there is none."""
    solarise: BoolArray
    rotation: FloatArray
    """In radians."""
    erase: BoolArray
    corner: FloatArray
    """Where the erased square lies, [N, 2] in [0, 1)."""


def draw_crop_view(
    view: CropView, keys: Keys, *, seed: int, stream: int, heights: IntArray, widths: IntArray
) -> CropDraws:
    """The parameters of `view` as a function of (seed, stream, epoch, index)."""
    u = uniforms(seed=seed, stream=stream, epochs=keys.epochs, indices=keys.indices, num=CROP_DRAWS + _EXTRA_DRAWS)
    boxes = draw_crops(u[:, :CROP_DRAWS], heights=heights, widths=widths, scale=view.crop_scale, ratio=view.crop_ratio)
    u = u[:, CROP_DRAWS:]
    reach = np.array([view.brightness, view.contrast, view.saturation, view.hue])
    factors = np.array([1.0, 1.0, 1.0, 0.0]) + (2.0 * u[:, 3:7] - 1.0) * reach
    low, high = view.blur_sigma
    return CropDraws(
        boxes=boxes,
        flip=u[:, 0] < view.flip,
        jitter=JitterDraws(u[:, 1] < view.jitter, (u[:, 2] * 24).astype(np.int64), factors, _active(view)),
        grayscale=u[:, 7] < view.grayscale,
        sigma=np.where(u[:, 8] < view.blur, low + (high - low) * u[:, 9], 0.0),
        solarise=u[:, 10] < view.solarise,
        rotation=np.deg2rad((2.0 * u[:, 11] - 1.0) * view.rotation),
        erase=u[:, 12] < view.erase,
        corner=u[:, 13:15],
    )


def _active(view: CropView) -> tuple[int, ...]:
    """The steps of the colour jitter that do anything."""
    reach = (view.brightness, view.contrast, view.saturation, view.hue)
    return tuple(step for step, value in enumerate(reach) if value)


@dataclass(frozen=True)
class CropPlan:
    """One or more CropViews of a batch, ready for its device: `CropDraws` by the images that each step concerns."""

    view: CropView
    boxes: Tensor
    flip: Tensor
    rotation: Tensor
    jitter: JitterPlan
    grayscale: Tensor
    blurred: Tensor
    taps: Tensor
    """Filters of the blurred images."""
    solarise: Tensor
    erased: Tensor
    corner: Tensor
    """First row and column of the erased squares."""


@dataclass(frozen=True)
class ShiftPlan:
    """One or more weak or strong views of a batch, ready for its device."""

    rows: Tensor
    columns: Tensor
    strong: StrongPlan | None


ViewPlan = CropPlan | ShiftPlan


def view_groups(views: Views, device: torch.device) -> tuple[tuple[int, ...], ...]:
    """The numbers of the views that are made together: on a GPU as many as are alike, so that it is asked once.

    A CPU does better view by view, in its cache.
    """
    if device.type == "cpu":
        return tuple((number,) for number in range(len(views)))
    groups: dict[Hashable, list[int]] = {}
    for number, view in enumerate(views):
        groups.setdefault(_likeness(view), []).append(number)
    return tuple(tuple(numbers) for numbers in groups.values())


def _likeness(view: View) -> Hashable:
    """Equal for views that differ in probabilities and ranges of draws only."""
    if not isinstance(view, CropView):
        return type(view), view
    return view.size, view.interpolation, view.colours, view.blur_sigma, view.rotation > 0, _active(view)


def plan_views(views: Views, keys: Keys, *, seed: int, streams: Sequence[int], side: tuple[int, int]) -> ViewPlan:
    """Views of one group, each with its stream, one after another, of images of `side` = (height, width) pixels."""
    if not isinstance(views[0], CropView):
        return _plan_shifts(views[0], keys, seed=seed, streams=streams, side=side)
    heights, widths = (np.full(len(keys), length, dtype=np.int64) for length in side)
    draws = [
        draw_crop_view(view, keys, seed=seed, stream=stream, heights=heights, widths=widths)
        for view, stream in zip(views, streams, strict=True)
        if isinstance(view, CropView)
    ]
    return plan_crops(views[0], draws)


def plan_crops(view: CropView, draws: Sequence[CropDraws]) -> CropPlan:
    """The plan of views that are like `view`, from the draws of each."""
    names = ("boxes", "flip", "rotation", "grayscale", "sigma", "solarise", "erase", "corner")
    boxes, flip, rotation, grayscale, sigma, solarise, erase, corner = (
        np.concatenate([getattr(drawn, name) for drawn in draws]) for name in names
    )
    jitters = [drawn.jitter for drawn in draws]
    applied, order, factors = (
        np.concatenate([getattr(jitter, name) for jitter in jitters]) for name in ("applied", "order", "factors")
    )
    half, side = half_width(view.blur_sigma[1]), view.size // 4
    return CropPlan(
        view=view,
        boxes=torch.from_numpy(boxes),
        flip=torch.from_numpy(flip),
        rotation=torch.from_numpy(rotation),
        jitter=plan_jitter(JitterDraws(applied, order, factors, jitters[0].active)),
        grayscale=rows_of(grayscale),
        blurred=rows_of(sigma > 0),
        taps=torch.from_numpy(blur_taps(sigma[sigma > 0], half=half)).float(),
        solarise=rows_of(solarise),
        erased=rows_of(erase),
        corner=torch.from_numpy((corner[erase] * (view.size - side + 1)).astype(np.int64)),
    )


def _plan_shifts(view: WeakView, keys: Keys, *, seed: int, streams: Sequence[int], side: tuple[int, int]) -> ShiftPlan:
    num = WEAK_DRAWS + (num_draws(view) if isinstance(view, StrongView) else 0)
    u = np.concatenate(
        [uniforms(seed=seed, stream=stream, epochs=keys.epochs, indices=keys.indices, num=num) for stream in streams]
    )
    padding = round(view.padding * side[0])
    shifts = (u[:, 1:3] * (2 * padding + 1)).astype(np.int64)
    rows, columns = shifted_positions(shifts, u[:, 0] < view.flip, padding=padding, height=side[0], width=side[1])
    strong = plan_strong(view, u[:, WEAK_DRAWS:], size=side[1]) if isinstance(view, StrongView) else None
    return ShiftPlan(rows, columns, strong)


def make_views(images: Tensor, plan: ViewPlan) -> Tensor:
    """The planned views of uint8 images [N, 3, H, W], as whole numbers 0..255 (uint8 or float32)."""
    if isinstance(plan, CropPlan):
        return finish_crops_(crop_batch(images, plan.view, plan.boxes, plan.flip, plan.rotation), plan)
    x = shift_flip(images.permute(0, 2, 3, 1), plan.rows, plan.columns)
    if plan.strong is not None:
        strengthen_(x, plan.strong)
    return x.permute(0, 3, 1, 2)


def crop_batch(images: Tensor, view: CropView, boxes: Tensor, flip: Tensor, rotation: Tensor) -> Tensor:
    """The crop of each image [N, 3, H, W], turned by `rotation` (radians) and mirrored as drawn."""
    x = rotate(images, rotation.float()) if view.rotation else images
    return crop_resize(x, boxes, flip, size=view.size, interpolation=view.interpolation)


def finish_crops_(x: Tensor, plan: CropPlan) -> Tensor:
    """Everything after the crop, batched: colour jitter, grayscale, blur, solarise, erase."""
    jitter_(x, plan.jitter, plan.view.colours)
    grayscale_(x, plan.grayscale)
    if len(plan.blurred):
        x.index_copy_(0, plan.blurred, blur(x.index_select(0, plan.blurred), plan.taps))
    solarise_(x, plan.solarise)
    return erase_(x, plan.erased, plan.corner, side=plan.view.size // 4) if len(plan.erased) else x


def erase_(x: Tensor, rows: Tensor, corner: Tensor, *, side: int) -> Tensor:
    """Paint a gray square of `side` pixels into the chosen images, in place."""
    position = torch.arange(x.shape[-1], device=x.device)
    inside = (position >= corner[:, :, None]) & (position < corner[:, :, None] + side)
    square = (inside[:, 0, :, None] & inside[:, 1, None, :])[:, None]
    return x.index_copy_(0, rows, x.index_select(0, rows).masked_fill_(square, GRAY))
