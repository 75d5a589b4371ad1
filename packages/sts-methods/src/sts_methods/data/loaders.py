"""From a request for certain samples to their views on the device, for images in memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sts_methods.data.sources import ImageArrays
from sts_methods.draws import LABELLED_VIEW_STREAM, VIEW_STREAM, IntArray, Keys
from sts_methods.transfer import sent
from sts_methods.views import per_image
from sts_methods.views.batched import ViewPlan, crop_batch, draw_crop_view, make_views, plan_views, view_groups
from sts_methods.views.specs import CropView, Views

Groups = tuple[tuple[int, ...], ...]
"""Numbers of the views that are made together."""
Plans = tuple[ViewPlan | None, ...]
"""One for each group of views; None where they are finished picture by picture."""


@dataclass(frozen=True)
class Request:
    """The samples of one micro-batch of one rank."""

    step: int
    unlabelled: Keys
    labelled: Keys | None


@dataclass(frozen=True)
class Pictures:
    """Views on the device with values 0..255: [N, 3, size, size], uint8 or float."""

    views: tuple[Tensor, ...]
    indices: Tensor
    """The images shown: those asked for, or what took the place of unreadable ones."""
    labelled: tuple[Tensor, ...] = ()
    """The student's view of the labelled images and, in Mean Teacher, the teacher's."""
    labels: Tensor | None = None
    """Classes of the labelled images."""


@dataclass(frozen=True)
class Instructions:
    """All that a batch needs on its device besides pixels."""

    indices: Tensor
    plans: Plans
    labelled_indices: Tensor | None = None
    labelled_plans: Plans = ()
    labels: Tensor | None = None


class Planner:
    """Plans the views of batches, group by group of views that are made together on `device`.

    With `crops` False CropViews are left to be finished picture by picture.
    """

    def __init__(
        self, views: Views, labels: IntArray | None, *, seed: int, device: torch.device, num_labelled_views: int,
        crops: bool,
    ) -> None:  # fmt: skip
        self._views, self._labels, self._seed, self._crops = views, labels, seed, crops
        self.groups = view_groups(views, device)
        self.labelled_groups = view_groups(views[:num_labelled_views], device)

    def instructions(self, request: Request, side: tuple[int, int] | None = None) -> Instructions:
        """For images of `side` = (height, width), or, if None, of the size of their views."""
        todo = Instructions(
            torch.from_numpy(request.unlabelled.indices),
            self._plans(self.groups, request.unlabelled, VIEW_STREAM, side),
        )
        if (labelled := request.labelled) is None:
            return todo
        return replace(
            todo,
            labelled_indices=torch.from_numpy(labelled.indices),
            labelled_plans=self._plans(self.labelled_groups, labelled, LABELLED_VIEW_STREAM, side),
            labels=self.labels_of(labelled.indices),
        )

    def labels_of(self, indices: IntArray) -> Tensor | None:
        """The classes of these images."""
        return None if self._labels is None else torch.from_numpy(self._labels[indices])

    def _plans(self, groups: Groups, keys: Keys, stream: int, side: tuple[int, int] | None) -> Plans:
        return tuple(self._plan(group, keys, stream, side) for group in groups)

    def _plan(self, group: tuple[int, ...], keys: Keys, stream: int, side: tuple[int, int] | None) -> ViewPlan | None:
        views = tuple(self._views[number] for number in group)
        if not self._crops and isinstance(views[0], CropView):
            return None
        streams = [stream + number for number in group]
        return plan_views(views, keys, seed=self._seed, streams=streams, side=side or (views[0].size,) * 2)


def views_apart(made: Iterable[Tensor], groups: Groups) -> tuple[Tensor, ...]:
    """The views in their order, from one tensor for each group, which holds view after view."""
    by_number = {
        number: view
        for x, group in zip(made, groups, strict=True)
        for number, view in zip(group, x.chunk(len(group)), strict=True)
    }
    return tuple(by_number[number] for number in sorted(by_number))


class ArrayLoader:
    """Views of images that are held on the device, computed batch by batch.

    On a CPU (`on_device` False) only the crops are batched, the rest goes picture by picture: 1.5 times faster.
    """

    def __init__(
        self, source: ImageArrays, views: Views, *, seed: int, device: torch.device, on_device: bool,
        num_labelled_views: int = 1,
    ) -> None:  # fmt: skip
        self._images = source.images.permute(0, 2, 3, 1).contiguous().to(device)  # [N, H, W, C]: an image is one run
        self._side = (self._images.shape[1], self._images.shape[2])
        self._views, self._seed, self._device = views, seed, device
        self._planner = Planner(
            views, source.labels, seed=seed, device=device, num_labelled_views=num_labelled_views, crops=on_device
        )
        self.fingerprint = source.fingerprint()
        self.skipped: dict[int, str] = {}

    def pictures(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Pictures]]:
        for request in requests:
            todo = sent(self._planner.instructions(request, self._side), self._device)
            views = self._made(request.unlabelled, todo.indices, todo.plans, self._planner.groups, VIEW_STREAM)
            labelled: tuple[Tensor, ...] = ()
            if request.labelled is not None and todo.labelled_indices is not None:
                labelled = self._made(
                    request.labelled, todo.labelled_indices, todo.labelled_plans, self._planner.labelled_groups,
                    LABELLED_VIEW_STREAM,
                )  # fmt: skip
            yield request, Pictures(views, todo.indices, labelled, todo.labels)

    def _made(self, keys: Keys, indices: Tensor, plans: Plans, groups: Groups, stream: int) -> tuple[Tensor, ...]:
        images = self._images.index_select(0, indices).permute(0, 3, 1, 2)
        made = (
            make_views(_tiled(images, group), plan)
            if plan is not None
            else self._by_picture(images, group[0], keys, stream)
            for plan, group in zip(plans, groups, strict=True)
        )
        return views_apart(made, groups)

    def _by_picture(self, images: Tensor, number: int, keys: Keys, stream: int) -> Tensor:
        view = self._views[number]
        assert isinstance(view, CropView), "other views are planned"
        heights, widths = (np.full(len(keys), side, dtype=np.int64) for side in self._side)
        draws = draw_crop_view(view, keys, seed=self._seed, stream=stream + number, heights=heights, widths=widths)
        places = (torch.from_numpy(drawn) for drawn in (draws.boxes, draws.flip, draws.rotation))
        pictures = crop_batch(images, view, *places).permute(0, 2, 3, 1)
        pictures = pictures.to(torch.uint8, memory_format=torch.contiguous_format)
        per_image.finish_crops_(pictures.numpy(), view, draws)
        return pictures.permute(0, 3, 1, 2)


def _tiled(images: Tensor, group: tuple[int, ...]) -> Tensor:
    return images if len(group) == 1 else images.repeat(len(group), 1, 1, 1)
