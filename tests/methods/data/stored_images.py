"""The same photographs as files, in shards and in tables."""

import io
import json
import tarfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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


def table(content: Mapping[str, Sample], **more: list[Any]) -> pa.Table:
    """As `datasets` makes it of an Image and a ClassLabel."""
    about = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}
    columns: dict[str, Any] = {
        "image": [{"bytes": sample["jpg"], "path": f"{key}.jpg"} for key, sample in content.items()],
        "label": [int(sample["cls"]) for sample in content.values()],
    }
    made = pa.table(columns | more)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    made = made.set_column(0, pa.field("image", kind), made.column("image").cast(kind))
    return made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": about}})})


def write_arrow(path: Path, rows: pa.Table) -> Path:
    """An Arrow file as `save_to_disk` writes it, in batches of 4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows, max_chunksize=4)
    return path


def write_parquet(path: Path, rows: pa.Table) -> Path:
    """A Parquet file as the hub has them, in groups of 4 rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, row_group_size=4)
    return path


def write_tables(root: Path, suffix: str) -> Path:
    """Two numbered files for training, and one for evaluation."""
    write = write_arrow if suffix == "arrow" else write_parquet
    everything = table(samples())
    write(root / "train" / f"data-00000-of-00002.{suffix}", everything.slice(0, 9))
    write(root / "train" / f"data-00001-of-00002.{suffix}", everything.slice(9))
    write(root / "validation" / f"data-00000-of-00001.{suffix}", table(samples(first=100, num=6)))
    return root
