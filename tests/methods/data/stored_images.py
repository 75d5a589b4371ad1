"""The same photographs as files, in shards and in tables."""

import io
import tarfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from tests.methods.views import pillow_reference as reference

NUM_IMAGES = 24
Sample = dict[str, bytes]


def jpeg(number: int) -> bytes:
    """A photograph of a size of its own."""
    buffer = io.BytesIO()
    reference.pillow(reference.photograph(number, height=40 + number % 32, width=80 - number % 32)).save(buffer, "JPEG")
    return buffer.getvalue()


def samples(*, first: int = 0, num: int = NUM_IMAGES) -> dict[str, Sample]:
    """By key, the members of each sample; classes 0, 1, 2 in turn."""
    numbers = range(first, first + num)
    return {f"{number:05d}": {"jpg": jpeg(number), "cls": b"%d" % (number % 3), "json": b"{}"} for number in numbers}


def write_tar(path: Path, content: Mapping[str, Sample]) -> Path:
    """A shard of these samples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key, members in content.items():
            for suffix, data in members.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return path


def write_shards(root: Path, num_shards: int = 3) -> Path:
    """Shards for training, of unequal sizes, and one for evaluation."""
    everything = list(samples().items())
    cuts = [0, *(5 + 8 * k for k in range(num_shards - 1)), NUM_IMAGES]
    for number, (first, last) in enumerate(pairwise(cuts)):
        write_tar(root / f"photos-train-{number:04d}.tar", dict(everything[first:last]))
    write_tar(root / "photos-val-0000.tar", samples(first=100, num=6))
    return root


def write_folder(root: Path) -> Path:
    """The same images as a folder for each class."""
    for split, content in (("train", samples()), ("val", samples(first=100, num=6))):
        for key, sample in content.items():
            folder = root / split / sample["cls"].decode()
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{key}.jpg").write_bytes(sample["jpg"])
    return root
