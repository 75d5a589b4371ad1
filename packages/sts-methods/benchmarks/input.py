"""Images per second and core: the references' input pipelines, lightly's, torchvision's newest, kornia's and ours.

They take turns in one run.

    ci/bench input                        the table into docs/speed.md
    ci/bench input --dry                  print it and leave the page alone
    STS_DATA=folder ci/bench input        on the photographs of folder/voc2012_subset.tar

One pinned core, one thread, CPU time (of loader processes too), medians over rounds in which all pipelines see the same
images; only ratios within one run mean anything. The references and lightly deliver normalised float32, as they come.
Ours deliver uint8 and normalise on the device; the row "float32" includes the normalisation. Without STS_DATA the JPEGs
are made up, which are lighter to decode than photographs.
"""

import argparse
import io
import os
import resource
import statistics
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import kornia.augmentation as kornia
import numpy as np
import torch
from lightly.transforms import MoCoV2Transform
from PIL import Image
from pillow_pipelines import FixMatchTransform, moco_transform
from speed_page import machine, write_table
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from sts_methods.data.batches import normalise
from sts_methods.data.datasets import DATASETS, IMAGENET_STATISTICS
from sts_methods.data.file_loaders import FileLoader, FileViews
from sts_methods.data.loaders import ArrayLoader, Request
from sts_methods.data.sources import ImageArrays, ImageFiles, Paths
from sts_methods.draws import Keys
from sts_methods.views.specs import Views, two_views, weak_and_strong

GROUP = 16  # images of a round at 224 px
BLUR_TAPS = 13  # as many as Pillow's blur takes at its largest radius
Pipeline = Callable[[int], Any]
"""Processes the images of one round, given its number."""


# Pictures ------------------------------------------------------------------------------------------------------------


def photo_archive() -> Path | None:
    """The archive of PASCAL VOC photographs, if STS_DATA names its folder."""
    folder = os.environ.get("STS_DATA")
    return Path(folder) / "voc2012_subset.tar" if folder else None


def photographs(num: int) -> list[Image.Image]:
    """Photographs of about 500x375 pixels, or made-up pictures."""
    archive = photo_archive()
    if archive is None:
        return [made_up(number) for number in range(num)]
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar.getmembers() if m.name.endswith(".jpg")), key=lambda m: m.name)[:: 450 // num]
        return [Image.open(io.BytesIO(tar.extractfile(m).read())).convert("RGB") for m in members[:num]]  # type: ignore[union-attr]


def made_up(number: int) -> Image.Image:
    """Smooth colours, edges and grain."""
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
    picture = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), dtype=np.float64)
    return Image.fromarray(np.clip(picture + rng.normal(0, 8, picture.shape), 0, 255).astype(np.uint8))


def write_jpegs(folder: Path, images: Sequence[Image.Image], *, size: tuple[int, int]) -> list[str]:
    folder.mkdir()
    paths = [str(folder / f"{number:03d}.jpg") for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        image.resize(size if image.width >= image.height else size[::-1]).save(path, quality=95)
    return paths


# Pipelines -----------------------------------------------------------------------------------------------------------


class PillowFiles(Dataset[Any]):
    """Image files through a transform of Pillow images, twice unless it makes both views itself."""

    def __init__(self, paths: Sequence[str], transform: Any, *, twice: bool) -> None:
        self.paths, self.transform, self.twice = paths, transform, twice

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index % len(self.paths)], "rb") as file:
            image = Image.open(file).convert("RGB")
        return (self.transform(image), self.transform(image)) if self.twice else tuple(self.transform(image))


class TensorFiles(Dataset[Any]):
    """Image files through torchvision.transforms.v2 on uint8 tensors, decoded by torchvision once for both views."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(224, scale=(0.2, 1.0), antialias=True),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                v2.RandomGrayscale(p=0.2),
                v2.RandomApply([v2.GaussianBlur(BLUR_TAPS, (0.1, 2.0))], p=0.5),
                v2.RandomHorizontalFlip(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(*IMAGENET_STATISTICS),
            ]
        )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = decode_jpeg(read_file(self.paths[index % len(self.paths)]), mode=ImageReadMode.RGB)
        return self.transform(image), self.transform(image)


def kornia_views() -> nn.Sequential:
    """MoCo v2's operations after the crop, on a batch of floats; one order of colours for the whole batch."""
    mean, std = IMAGENET_STATISTICS
    return nn.Sequential(
        kornia.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        kornia.RandomGrayscale(p=0.2),
        kornia.RandomGaussianBlur((BLUR_TAPS, BLUR_TAPS), (0.1, 2.0), p=0.5),
        kornia.RandomHorizontalFlip(p=0.5),
        kornia.Normalize(torch.tensor(mean), torch.tensor(std)),
    )


def kornia_files(paths: Sequence[str]) -> Pipeline:
    """Decoded and cropped one by one by torchvision, since files differ in size; the rest by kornia on the batch."""
    crop = v2.RandomResizedCrop(224, scale=(0.2, 1.0), antialias=True)
    finish = kornia_views()

    def run(number: int) -> Any:
        chosen = [paths[(number * GROUP + k) % len(paths)] for k in range(GROUP)]
        images = [decode_jpeg(read_file(path), mode=ImageReadMode.RGB) for path in chosen]
        return tuple(finish(torch.stack([crop(image) for image in images]).float() / 255) for _ in range(2))

    return run


def kornia_arrays(images: Tensor) -> Pipeline:
    crop, finish = kornia.RandomResizedCrop((32, 32), scale=(0.2, 1.0)), kornia_views()

    def run(number: int) -> Any:
        return tuple(finish(crop(images.float() / 255)) for _ in range(2))

    return run


def request(round_number: int, num: int, total: int) -> Request:
    indices = (np.arange(num) + round_number * num) % total
    return Request(round_number, Keys(indices, np.full(num, round_number)), None)


def one_by_one(dataset: Dataset[Any]) -> Pipeline:
    def run(number: int) -> Any:
        made = [dataset[number * GROUP + k] for k in range(GROUP)]
        return tuple(torch.stack([pair[view] for pair in made]) for view in (0, 1))

    return run


def our_files(paths: Sequence[str], *, finish: bool, floats: bool = False) -> Pipeline:
    source = ImageFiles(Paths(paths), None, None)
    reader = FileViews(source, two_views(image_size=224), seed=0, skip=False, finish=finish, labelled_set=None)

    def run(number: int) -> Any:
        views = reader[request(number, GROUP, len(paths))][1].views
        return tuple(normalise(x.permute(0, 3, 1, 2), IMAGENET_STATISTICS) for x in views) if floats else views

    return run


def jpeg_pipelines(paths: Sequence[str]) -> dict[str, Pipeline]:
    return {
        "reference (MoCo v2, Pillow)": one_by_one(PillowFiles(paths, moco_transform(224), twice=True)),
        "lightly MoCoV2Transform": one_by_one(PillowFiles(paths, MoCoV2Transform(input_size=224), twice=False)),
        "torchvision.transforms.v2 on tensors": one_by_one(TensorFiles(paths)),
        "torchvision's crop, then kornia, batched": kornia_files(paths),
        "ours": our_files(paths, finish=True),
        "ours, float32": our_files(paths, finish=True, floats=True),
        "ours, loader's part (colour and blur on the device)": our_files(paths, finish=False),
    }


def loader_pipelines(paths: Sequence[str], num_groups: int) -> dict[str, Pipeline]:
    """A fresh loader with one process for `num_groups` groups; its start and end are included."""

    def theirs(transform: Any, *, twice: bool) -> Pipeline:
        dataset = PillowFiles(list(paths) * 100, transform, twice=twice)

        def run(number: int) -> Any:
            first = number * num_groups * GROUP
            sampler = range(first, first + num_groups * GROUP)
            return list(DataLoader(dataset, batch_size=GROUP, sampler=sampler, num_workers=1))[-1]

        return run

    source = ImageFiles(Paths(paths), None, None)
    loader = FileLoader(
        source, two_views(image_size=224), seed=0, device=torch.device("cpu"), num_workers=1, skip=False,
        on_device=False, labelled_set=None,
    )  # fmt: skip

    def ours(number: int) -> Any:
        requests = [request(number * num_groups + k, GROUP, len(paths)) for k in range(num_groups)]
        return list(loader.pictures(requests))[-1][1].views

    return {
        "reference (MoCo v2, Pillow)": theirs(moco_transform(224), twice=True),
        "lightly MoCoV2Transform": theirs(MoCoV2Transform(input_size=224), twice=False),
        "ours": ours,
    }


def small_images(num: int) -> Tensor:
    """uint8 [num, 3, 32, 32]: pieces of photographs."""
    pieces = [np.asarray(image.resize((256, 192))) for image in photographs(24)]
    tiles = [piece[y : y + 32, x : x + 32] for piece in pieces for y in range(0, 192, 32) for x in range(0, 256, 32)]
    return torch.from_numpy(np.stack(tiles[:num])).permute(0, 3, 1, 2)


def our_arrays(images: Tensor, views: Views, *, on_device: bool) -> Pipeline:
    loader = ArrayLoader(
        ImageArrays(images, None, None), views, seed=0, device=torch.device("cpu"), on_device=on_device
    )

    def run(number: int) -> Any:
        ((_, made),) = loader.pictures([request(number, len(images), len(images))])
        return tuple(normalise(x, DATASETS["cifar10"].statistics) for x in made.views)

    return run


def pillow_arrays(images: Tensor, transform: Any, *, twice: bool) -> Pipeline:
    pictures = [Image.fromarray(x.permute(1, 2, 0).contiguous().numpy()) for x in images]

    def run(number: int) -> Any:
        made = [(transform(x), transform(x)) if twice else transform(x) for x in pictures]
        return tuple(torch.stack([pair[view] for pair in made]) for view in (0, 1))

    return run


def fixmatch_pipelines(images: Tensor) -> dict[str, Pipeline]:
    return {
        "reference (kekmodel's FixMatch, Pillow)": pillow_arrays(images, FixMatchTransform(), twice=False),
        "ours, float32": our_arrays(images, weak_and_strong(image_size=32), on_device=True),
    }


def small_pipelines(images: Tensor) -> dict[str, Pipeline]:
    return {
        "reference (MoCo v2, Pillow)": pillow_arrays(images, moco_transform(32), twice=True),
        "lightly MoCoV2Transform": pillow_arrays(images, MoCoV2Transform(input_size=32), twice=False),
        "kornia, batched": kornia_arrays(images),
        "ours, float32": our_arrays(images, two_views(image_size=32), on_device=False),
        "ours, float32, all batched (as on a GPU)": our_arrays(images, two_views(image_size=32), on_device=True),
    }


# Measuring -----------------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def measure(pipelines: dict[str, Pipeline], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each pipeline, taking turns after a warm-up."""
    shapes = {name: [tuple(sorted(view.shape)) for view in run(0)] for name, run in pipelines.items()}
    assert len({str(shape) for shape in shapes.values()}) == 1, f"the pipelines make different things: {shapes}"
    seconds: dict[str, list[float]] = {name: [] for name in pipelines}
    for number in range(1, rounds + 1):
        for name in list(pipelines) if number % 2 else list(reversed(pipelines)):
            start = cpu_seconds()
            pipelines[name](number)
            seconds[name].append(cpu_seconds() - start)
    return seconds


def rows(case: str, pipelines: dict[str, Pipeline], *, num_images: int, rounds: int) -> list[str]:
    seconds = measure(pipelines, rounds)
    reference = next(iter(pipelines))
    peers = [reference, *(name for name in pipelines if name.startswith("lightly"))]

    def ratio(peer: str, name: str) -> str:
        if peer not in pipelines:
            return "-"
        return f"{statistics.median(a / b for a, b in zip(seconds[peer], seconds[name], strict=True)):.2f}"

    return [
        f"| {case} | {name} | {num_images / statistics.median(seconds[name]):,.0f} | {ratio(reference, name)} | "
        f"{ratio(peers[1], name) if len(peers) > 1 else '-'} |"
        for name in pipelines
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="timed rounds of each pipeline")
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page alone")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    rounds = arguments.rounds
    images, small = photographs(48), small_images(448)
    table = [
        f"One run of {rounds} rounds on one core ({machine()}); "
        f"the JPEGs are {'made up' if photo_archive() is None else 'photographs of PASCAL VOC'}.",
        "",
        "| two views of | pipeline | images/s | x reference | x lightly |",
        "|---|---|---:|---:|---:|",
    ]

    def add(case: str, pipelines: dict[str, Pipeline], num_images: int, num_rounds: int) -> None:
        made = rows(case, pipelines, num_images=num_images, rounds=num_rounds)
        print(*made, sep="\n", flush=True)
        table.extend(made)

    with tempfile.TemporaryDirectory() as folder:
        for size in ((500, 375), (1000, 750)):
            paths = write_jpegs(Path(folder) / str(size[0]), images, size=size)
            add(f"a {size[0]}x{size[1]} JPEG, 224 px", jpeg_pipelines(paths), GROUP, rounds)
            if size == (500, 375):
                add("the same through a loader", loader_pipelines(paths, 8), 8 * GROUP, max(rounds // 3, 2))
    add("a 32 px image, batch 128", small_pipelines(small[:128]), 128, rounds)
    for batch in (448, 64):
        add(f"a 32 px image, weak and strong, batch {batch}", fixmatch_pipelines(small[:batch]), batch, rounds)
    if not arguments.dry:
        write_table("input", table)


if __name__ == "__main__":
    main()
