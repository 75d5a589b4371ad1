"""From a request for certain samples to their views on the device, for image files, which loader processes read."""

import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sts_methods.data.image_files import ImageReadError, read_image
from sts_methods.data.loaders import Groups, Instructions, Pictures, Planner, Plans, Request, views_apart
from sts_methods.data.sources import StoredImages
from sts_methods.draws import LABELLED_VIEW_STREAM, VIEW_STREAM, ByteImage, IntArray, Keys
from sts_methods.transfer import Parcel, pack
from sts_methods.views import per_image
from sts_methods.views.batched import CropPlan, ViewPlan, draw_crop_view, finish_crops_, make_views
from sts_methods.views.specs import CropView, View, Views

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")
_GROUP = 16  # images held decoded at a time: they stay in the cache, and numpy's overhead is shared


@dataclass
class Read:
    """What a loader process has made of a request."""

    views: tuple[Tensor, ...] = ()
    """uint8 [N, size, size, 3] each."""
    labelled: tuple[Tensor, ...] = ()
    parcel: Parcel[Instructions] | None = None
    """What is left to do; None where images could not be read."""
    failures: dict[int, str] = field(default_factory=dict)
    """Message for each image that could not be read, by index."""

    def pin_memory(self) -> "Read":
        """Called by the loader when the device is a GPU, so that copies overlap with computation."""
        self.views = tuple(x.pin_memory() for x in self.views)
        self.labelled = tuple(x.pin_memory() for x in self.labelled)
        self.parcel = None if self.parcel is None else self.parcel.pin_memory()
        return self


class FileLoader:
    """Views of image files: processes read, decode and crop; the rest happens there or, batched, on the device."""

    def __init__(
        self, source: StoredImages, views: Views, *, seed: int, device: torch.device, num_workers: int, skip: bool,
        on_device: bool, labelled_set: IntArray | None, num_labelled_views: int = 1,
    ) -> None:  # fmt: skip
        self._reader = FileViews(
            source, views, seed=seed, skip=skip, finish=not on_device, labelled_set=labelled_set,
            num_labelled_views=num_labelled_views, device=device,
        )  # fmt: skip
        self._device, self._num_workers, self._skip = device, num_workers, skip
        self.fingerprint = source.fingerprint()
        self.skipped: dict[int, str] = {}

    def pictures(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Pictures]]:
        loader = DataLoader(
            self._reader,
            sampler=requests,
            batch_size=None,
            num_workers=self._num_workers,
            worker_init_fn=_single_thread,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator(),  # without it the loader takes its seed from the global generator
        )
        for request, read in loader:
            if read.parcel is None:
                first = next(iter(read.failures.values()))
                raise ImageReadError(
                    first if not self._skip else f"no image of the pool is readable; the first: {first}"
                )
            self._note(read.failures)
            todo = read.parcel.opened(self._device)
            views = self._finish_all(read.views, todo.plans, self._reader.planner.groups)
            labelled: tuple[Tensor, ...] = ()
            if read.labelled:
                labelled = self._finish_all(read.labelled, todo.labelled_plans, self._reader.planner.labelled_groups)
            yield request, Pictures(views, todo.indices, labelled, todo.labels)

    def _finish_all(self, views: tuple[Tensor, ...], plans: Plans, groups: Groups) -> tuple[Tensor, ...]:
        """What the processes left to the device."""
        there = [x.to(self._device, non_blocking=True).permute(0, 3, 1, 2) for x in views]
        joined = (there[group[0]] if len(group) == 1 else torch.cat([there[n] for n in group]) for group in groups)
        return views_apart(map(_finished, joined, plans), groups)

    def _note(self, failures: dict[int, str]) -> None:
        for index, message in failures.items():
            if index not in self.skipped:
                self.skipped[index] = message
                logger.warning("skipped image %d: %s", index, message)  # in the same words on every rank


def _finished(images: Tensor, plan: ViewPlan | None) -> Tensor:
    if plan is None:
        return images
    return finish_crops_(images.float(), plan) if isinstance(plan, CropPlan) else make_views(images, plan)


class FileViews(Dataset[tuple[Request, Read]]):
    """What a loader process does with a request: read, decode, crop and, if `finish`, the rest of each CropView.

    Other views (weak, strong) get the image resized and centred; they are made in batches afterwards, as planned here,
    beside the main process. An image that cannot be read is reported in the result; with `skip` the next readable one
    in the dataset takes its place.
    """

    def __init__(
        self, source: StoredImages, views: Views, *, seed: int, skip: bool, finish: bool, labelled_set: IntArray | None,
        num_labelled_views: int = 1, device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.planner = Planner(
            views, source.labels, seed=seed, device=device, num_labelled_views=num_labelled_views, crops=not finish
        )
        self._num_labelled_views = num_labelled_views
        self._source, self._views = source, views
        self._seed, self._skip, self._finish = seed, skip, finish
        self._everything, self._labelled_set = np.arange(len(source)), labelled_set

    def __getitem__(self, request: Request) -> tuple[Request, Read]:
        read = Read()
        try:
            read.views, shown = self._load(
                request.unlabelled, self._views, VIEW_STREAM, self._everything, read.failures
            )
            todo = replace(self.planner.instructions(request), indices=torch.from_numpy(shown))
            if request.labelled is not None and self._labelled_set is not None:
                views = self._views[: self._num_labelled_views]
                read.labelled, shown = self._load(
                    request.labelled, views, LABELLED_VIEW_STREAM, self._labelled_set, read.failures
                )
                labels = self.planner.labels_of(shown)
                todo = replace(todo, labelled_indices=torch.from_numpy(shown), labels=labels)
            read.parcel = pack(todo)
        except ImageReadError:  # reported as data, since a loader process would wrap it in its own traceback
            pass
        return request, read

    def _load(
        self, keys: Keys, views: Views, stream: int, pool: IntArray, failures: dict[int, str]
    ) -> tuple[tuple[Tensor, ...], IntArray]:
        """Views as uint8 [N, size, size, 3]; images go through in small groups that share their vectorised draws."""
        out = tuple(torch.empty(len(keys), view.size, view.size, 3, dtype=torch.uint8) for view in views)
        shown = keys.indices.copy()
        for first in range(0, len(keys), _GROUP):
            group = slice(first, first + _GROUP)
            read = self._read_all(keys.indices[group], pool, failures)
            shown[group] = [index for index, _ in read]
            for number, (view, x) in enumerate(zip(views, out, strict=True)):
                self._fill(x[group].numpy(), [image for _, image in read], view, keys[group], stream + number)
        return out, shown

    def _read_all(self, indices: IntArray, pool: IntArray, failures: dict[int, str]) -> list[tuple[int, ByteImage]]:
        """A group of images, all under way at once where they come over a network."""
        if not self._source.waits:
            return [self._read(int(index), pool, failures) for index in indices]
        with ThreadPoolExecutor(_GROUP) as threads:
            return list(threads.map(lambda index: self._read(int(index), pool, failures), indices))

    def _fill(self, out: ByteImage, images: list[ByteImage], view: View, keys: Keys, stream: int) -> None:
        heights, widths = np.array([image.shape[:2] for image in images], dtype=np.int64).T
        if not isinstance(view, CropView):
            for x, image in zip(out, images, strict=True):
                x[...] = per_image.resize_centre(image, size=view.size)
            return
        draws = draw_crop_view(view, keys, seed=self._seed, stream=stream, heights=heights, widths=widths)
        for row, (x, image) in enumerate(zip(out, images, strict=True)):
            per_image.crop_resize_into(x, image, draws.boxes[row], bool(draws.flip[row]), view.interpolation)
        if self._finish:
            per_image.finish_crops_(out, view, draws)

    def _read(self, index: int, pool: IntArray, failures: dict[int, str]) -> tuple[int, ByteImage]:
        """The image or, with `skip`, the next readable one of the pool, each with its index."""
        first = int(np.searchsorted(pool, index))
        for turn in range(len(pool) if self._skip else 1):
            candidate = int(pool[(first + turn) % len(pool)])
            try:
                return candidate, read_image(self._source, candidate)
            except ImageReadError as error:
                failures[candidate] = str(error)
        raise ImageReadError


def _single_thread(worker: int) -> None:
    """One process per core reads; more threads would only get in each other's way.

    0 and not 1: in a forked process OpenCV's pool has lost its threads, and 1 would wait for them to end, for ever.
    """
    cv2.setNumThreads(0)
