"""From a request for certain samples to their views on the device: from memory, or from files by loader processes."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sts_methods.data.image_files import ImageReadError, read_image
from sts_methods.data.sources import ImageArrays, ImageFiles
from sts_methods.draws import LABELLED_VIEW_STREAM, VIEW_STREAM, ByteImage, IntArray, Keys
from sts_methods.views import per_image
from sts_methods.views.batched import augment_batch, crop_batch, draw_crop_view, finish_crops_
from sts_methods.views.specs import CropView, View, Views

logger = logging.getLogger(__name__)

_GROUP = 16  # images held decoded at a time: they stay in the cache, and numpy's overhead is shared


@dataclass(frozen=True)
class Request:
    """The samples of one micro-batch of one rank."""

    step: int
    unlabelled: Keys
    labelled: Keys | None


@dataclass
class Pictures:
    """Views with values 0..255: [N, 3, size, size], uint8 or float."""

    views: tuple[Tensor, ...]
    indices: IntArray
    """The images shown: those asked for, or what took the place of unreadable ones."""
    labelled: tuple[Tensor, ...] = ()
    """The student's view of the labelled images and, in Mean Teacher, the teacher's."""
    labelled_indices: IntArray | None = None
    failures: dict[int, str] = field(default_factory=dict)
    """Message for each image that could not be read, by index."""

    def pin_memory(self) -> "Pictures":
        """Called by the loader when the device is a GPU, so that copies overlap with computation."""
        self.views = tuple(x.pin_memory() for x in self.views)
        self.labelled = tuple(x.pin_memory() for x in self.labelled)
        return self


class ArrayFeed:
    """Views of images that are held on the device, computed batch by batch.

    On a CPU (`on_device` False) only the crops are batched, the rest goes picture by picture: 1.5 times faster.
    """

    def __init__(
        self, source: ImageArrays, views: Views, *, seed: int, device: torch.device, on_device: bool,
        num_labelled_views: int = 1,
    ) -> None:  # fmt: skip
        self._on_device, self._num_labelled_views = on_device, num_labelled_views
        self._images = source.images.permute(0, 2, 3, 1).contiguous().to(device)  # [N, H, W, C]: an image is one run
        self._views, self._seed, self._device = views, seed, device
        self.fingerprint = source.fingerprint()
        self.skipped: dict[int, str] = {}

    def pictures(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Pictures]]:
        for request in requests:
            keys = request.unlabelled
            made = Pictures(self._of(keys, len(self._views), VIEW_STREAM), keys.indices)
            if request.labelled is not None:
                made.labelled = self._of(request.labelled, self._num_labelled_views, LABELLED_VIEW_STREAM)
                made.labelled_indices = request.labelled.indices
            yield request, made

    def _of(self, keys: Keys, num_views: int, stream: int) -> tuple[Tensor, ...]:
        images = self._take(keys)
        return tuple(self._view(images, number, keys, stream) for number in range(num_views))

    def _take(self, keys: Keys) -> Tensor:
        return self._images.index_select(0, torch.from_numpy(keys.indices).to(self._device)).permute(0, 3, 1, 2)

    def _view(self, images: Tensor, number: int, keys: Keys, stream: int) -> Tensor:
        view = self._views[number]
        if self._on_device or not isinstance(view, CropView):
            return augment_batch(images, view, keys, seed=self._seed, stream=stream + number)
        crops, draws = crop_batch(images, view, keys, seed=self._seed, stream=stream + number)
        pictures = crops.permute(0, 2, 3, 1).to(torch.uint8, memory_format=torch.contiguous_format)
        per_image.finish_crops_(pictures.numpy(), view, draws)
        return pictures.permute(0, 3, 1, 2)


class FileFeed:
    """Views of image files: processes read, decode and crop; the rest happens there or, batched, on the device."""

    def __init__(
        self, source: ImageFiles, views: Views, *, seed: int, device: torch.device, num_workers: int, skip: bool,
        on_device: bool, labelled_set: IntArray | None, num_labelled_views: int = 1,
    ) -> None:  # fmt: skip
        self._reader = FileViews(
            source, views, seed=seed, skip=skip, finish=not on_device, labelled_set=labelled_set,
            num_labelled_views=num_labelled_views,
        )  # fmt: skip
        self._views, self._seed, self._device, self._num_workers = views, seed, device, num_workers
        self._on_device, self._skip = on_device, skip
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
        for request, made in loader:
            if not made.views:
                first = next(iter(made.failures.values()))
                raise ImageReadError(
                    first if not self._skip else f"no image of the pool is readable; the first: {first}"
                )
            self._note(made.failures)
            made.views = self._finish_all(made.views, request.unlabelled, VIEW_STREAM)
            if request.labelled is not None:
                made.labelled = self._finish_all(made.labelled, request.labelled, LABELLED_VIEW_STREAM)
            yield request, made

    def _finish_all(self, views: tuple[Tensor, ...], keys: Keys, stream: int) -> tuple[Tensor, ...]:
        return tuple(self._finish(images, number, keys, stream) for number, images in enumerate(views))

    def _finish(self, images: Tensor, number: int, keys: Keys, stream: int) -> Tensor:
        """What the processes left to the device."""
        x = images.to(self._device, non_blocking=True).permute(0, 3, 1, 2)
        view = self._views[number]
        if not isinstance(view, CropView):
            return augment_batch(x, view, keys, seed=self._seed, stream=stream + number)
        if not self._on_device:
            return x
        sides = np.full(len(keys), view.size, dtype=np.int64)  # of no account: the crops are done
        draws = draw_crop_view(view, keys, seed=self._seed, stream=stream + number, heights=sides, widths=sides)
        return finish_crops_(x.float(), view, draws)

    def _note(self, failures: dict[int, str]) -> None:
        for index, message in failures.items():
            if index not in self.skipped:
                self.skipped[index] = message
                logger.warning("skipped image %d (%d so far): %s", index, len(self.skipped), message)


class FileViews(Dataset[tuple[Request, Pictures]]):
    """What a loader process does with a request: read, decode, crop and, if `finish`, the rest of each CropView.

    Other views (weak, strong) get the image resized and centred; they are made in batches afterwards. An image that
    cannot be read is reported in the result; with `skip` the next readable one in the dataset takes its place.
    """

    def __init__(
        self, source: ImageFiles, views: Views, *, seed: int, skip: bool, finish: bool, labelled_set: IntArray | None,
        num_labelled_views: int = 1,
    ) -> None:  # fmt: skip
        self._num_labelled_views = num_labelled_views
        self._source, self._views = source, views
        self._seed, self._skip, self._finish = seed, skip, finish
        self._everything, self._labelled_set = np.arange(len(source)), labelled_set

    def __getitem__(self, request: Request) -> tuple[Request, Pictures]:
        failures: dict[int, str] = {}
        try:
            made = Pictures(
                *self._load(request.unlabelled, self._views, VIEW_STREAM, self._everything, failures), failures=failures
            )
            if request.labelled is not None and self._labelled_set is not None:
                views = self._views[: self._num_labelled_views]
                made.labelled, made.labelled_indices = self._load(
                    request.labelled, views, LABELLED_VIEW_STREAM, self._labelled_set, failures
                )
            return request, made
        except ImageReadError:  # reported as data, since a loader process would wrap it in its own traceback
            return request, Pictures((), request.unlabelled.indices, failures=failures)

    def _load(
        self, keys: Keys, views: Views, stream: int, pool: IntArray, failures: dict[int, str]
    ) -> tuple[tuple[Tensor, ...], IntArray]:
        """Views as uint8 [N, size, size, 3]; images go through in small groups that share their vectorised draws."""
        out = tuple(torch.empty(len(keys), view.size, view.size, 3, dtype=torch.uint8) for view in views)
        shown = keys.indices.copy()
        for first in range(0, len(keys), _GROUP):
            group = slice(first, first + _GROUP)
            read = [self._read(int(index), pool, failures) for index in keys.indices[group]]
            shown[group] = [index for index, _ in read]
            for number, (view, x) in enumerate(zip(views, out, strict=True)):
                self._fill(x[group].numpy(), [image for _, image in read], view, keys[group], stream + number)
        return out, shown

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
                return candidate, read_image(self._source.paths[candidate])
            except ImageReadError as error:
                failures[candidate] = str(error)
        raise ImageReadError


def _single_thread(worker: int) -> None:
    """One process per core reads; more threads would only get in each other's way.

    0 and not 1: in a forked process OpenCV's pool has lost its threads, and 1 would wait for them to end, for ever.
    """
    cv2.setNumThreads(0)
