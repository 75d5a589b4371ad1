"""Which training image comes when, and how it is resized and mirrored: a function of (seed, iteration) alone."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from sts_core import ConfigError
from sts_core.distributed import rank, world_size
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.draws import draw_integers, draw_permutation
from sts_eval.detection.errors import VocError
from sts_eval.detection.voc import VocImage, load_image


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One image as a detector takes it."""

    image_id: str
    image: torch.Tensor
    """uint8 [3, H, W], RGB, resized."""
    boxes: torch.Tensor
    """float32 [N, 4] in coordinates of the resized image."""
    classes: torch.Tensor
    """int64 [N]."""
    original_size: tuple[int, int]
    """Height and width in the file, to which detections are scaled back."""
    key: int
    """Visits have distinct keys; all that is drawn for this image depends on it."""


def resized_shape(height: int, width: int, *, short_side: int, max_size: int) -> tuple[int, int]:
    """Height and width with the short side at `short_side`, or less where the long side would exceed `max_size`."""
    scale = short_side / min(height, width)
    # The short side takes its length directly: scale · short side may fall below the integer.
    new_height, new_width = (short_side, scale * width) if height < width else (scale * height, short_side)
    if max(new_height, new_width) > max_size:
        shrink = max_size / max(new_height, new_width)
        new_height, new_width = new_height * shrink, new_width * shrink
    return int(new_height + 0.5), int(new_width + 0.5)


def make_sample(image: VocImage, *, short_side: int, max_size: int, flip: bool, key: int) -> Sample:
    """Decode, resize (bilinear, antialiased) and mirror an image together with its boxes."""
    height, width = resized_shape(image.height, image.width, short_side=short_side, max_size=max_size)
    pixels = np.asarray(load_image(image).resize((width, height), Image.Resampling.BILINEAR))
    scale = np.array([width / image.width, height / image.height] * 2)
    boxes = image.boxes * scale
    if flip:
        pixels = pixels[:, ::-1]
        boxes = np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)
    boxes = np.clip(boxes, 0, [width, height, width, height])
    return Sample(
        image_id=image.image_id,
        image=torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))),
        boxes=torch.from_numpy(boxes.astype(np.float32)),
        classes=torch.from_numpy(image.classes.copy()),
        original_size=(image.height, image.width),
        key=key,
    )


def visiting_order(images: Sequence[VocImage], *, seed: int, group_size: int, length: int) -> np.ndarray:
    """The first `length` entries of the endless order of visits, as indices into `images`.

    Every epoch is a permutation of its own. Its images wait in one queue for landscapes and one for portraits, and
    leave a queue in groups of `group_size`; what remains at the end of an epoch waits for the next.
    """
    landscape = [image.width > image.height for image in images]
    queues: dict[bool, list[int]] = {True: [], False: []}
    order: list[int] = []
    for epoch in itertools.count():
        for index in draw_permutation("order", seed, epoch, size=len(images)).tolist():
            queue = queues[landscape[index]]
            queue.append(index)
            if len(queue) == group_size:
                order.extend(queue)
                queue.clear()
        if len(order) >= length:
            return np.array(order[:length])
    raise AssertionError("unreachable")


class TrainingVisits(Dataset[Sample]):
    """Item v is visit v of training: slot v mod B of iteration v // B, for batches of B images."""

    def __init__(self, images: Sequence[VocImage], config: DetectionConfig) -> None:
        self.images = [image for image in images if len(image.boxes)]  # as d2: nothing to learn without an object
        if not self.images:
            raise ConfigError("training needs an image with an object, got none in the training splits: add a split")
        self.config = config
        length = (config.iterations + config.precise_bn_iterations) * config.batch_size
        self.order = visiting_order(self.images, seed=config.seed, group_size=config.group_size, length=length)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, visit: int) -> Sample:
        config = self.config
        choice, mirror, key = draw_integers("augmentation", config.seed, visit, count=3).tolist()
        return make_sample(
            self.images[self.order[visit]],
            short_side=config.train_sizes[choice % len(config.train_sizes)],
            max_size=config.max_size,
            flip=config.horizontal_flip and bool(mirror & 1),
            key=key >> 1,  # torch holds no unsigned 64 bits
        )

    def batches(self, start: int, stop: int) -> Iterator[list[Sample]]:
        """This worker's part of the batches of the iterations start ... stop−1."""
        size = self.config.batch_size
        share = size // world_size()
        firsts = [iteration * size + rank() * share for iteration in range(start, stop)]
        batches = [list(range(first, first + share)) for first in firsts]
        return _load(self, batches, self.config.num_workers)


class TestSamples(Dataset[Sample]):
    """The images of a test split at the test size, as they are."""

    __test__ = False  # not a test case, whatever the name says to pytest

    def __init__(self, images: Sequence[VocImage], config: DetectionConfig) -> None:
        self.images = images
        self.config = config

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        config = self.config
        return make_sample(
            self.images[index], short_side=config.test_size, max_size=config.max_size, flip=False, key=index
        )

    def of_this_worker(self) -> Iterator[list[Sample]]:
        """Every R-th image for R workers, one at a time, since padding would change the result."""
        mine = [[index] for index in range(rank(), len(self), world_size())]
        return _load(self, mine, self.config.num_workers)


def _load(samples: Dataset[Sample], batches: list[list[int]], num_workers: int) -> Iterator[list[Sample]]:
    """The samples of each batch, in order; an unreadable image is one sentence, whoever reads it."""
    # Nothing is drawn from the generator, but without one torch asks the global one.
    generator = torch.Generator().manual_seed(0)
    loader: DataLoader[Any] = DataLoader(
        _Readable(samples), batch_sampler=batches, num_workers=num_workers, collate_fn=list, generator=generator
    )
    for batch in loader:
        for error in batch:
            if isinstance(error, VocError):
                raise error
        yield batch


class _Readable(Dataset[Sample | VocError]):
    """Samples whose failures are values: a loader process would wrap an exception in its traceback."""

    def __init__(self, samples: Dataset[Sample]) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> Sample | VocError:
        try:
            return self.samples[index]
        except VocError as error:
            return VocError(*error.args)
