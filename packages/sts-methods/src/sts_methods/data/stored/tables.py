"""Hugging Face datasets on disk: tables in Arrow files, of which each image is mapped, and in Parquet files."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from sts_core import ConfigError
from sts_core.files import is_uri, locked, replacing
from sts_methods.data.sources import Layout, Split, StoredImages, fingerprint
from sts_methods.data.stored.classes import numbered
from sts_methods.data.stored.storage import Storage, StoredFile, kept, of_split, pyarrow_fs
from sts_methods.draws import IntArray

VERSION = 1  # of the files in the cache
ROWS_AT_A_TIME = 100  # while Parquet is unpacked
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"  # Arrow, IPC streaming format
IPC_FILE = b"ARROW1"


@dataclass(frozen=True)
class Columns:
    """Which columns of a split's tables are used."""

    image: str
    label: str | None
    names: tuple[str, ...] | None
    """Names of the classes, where the table has them."""

    @property
    def both(self) -> list[str]:
        return [self.image, *([] if self.label is None else [self.label])]


@dataclass(frozen=True)
class TableImages(StoredImages):
    """Images in a column: file after file by name, row after row."""

    files: tuple[tuple[str, int], ...]
    """Arrow files, each with the time of its last change."""
    shown: tuple[str, ...]
    """What errors call them: Parquet files have Arrow files of their own."""
    column: str
    """The column of images."""
    ends: IntArray
    """How many images there are up to the end of each file."""
    sizes: IntArray
    """Bytes of each image."""
    labels: IntArray | None
    classes: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.sizes)

    def fingerprint(self) -> str:
        """Number and hash of the images' sizes and of labels: the same rows in other files count alike."""
        return fingerprint(len(self), self.sizes, self.labels)

    def name(self, index: int) -> str:
        """Its row and its file."""
        file, row = self._place(index)
        return f"row {row} of {self.shown[file]}"

    def encoded(self, index: int) -> bytes:
        """The bytes of its row, from the mapped file."""
        file, row = self._place(index)
        value = _table(*self.files[file]).column(self.column)[row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if data is None:
            raise ValueError("the row holds no image")
        return bytes(data)

    def _place(self, index: int) -> tuple[int, int]:
        file = int(np.searchsorted(self.ends, index, side="right"))
        return file, index - (int(self.ends[file - 1]) if file else 0)


def table_images(root: str, split: Split, layout: Layout) -> TableImages:
    """The tables of a split; the classes are those that the tables name, or else of the training set."""
    if is_uri(root):
        raise ConfigError("dataset 'huggingface' is read from a folder of this machine, got a URI: copy it there")
    storage = Storage(root)
    files = [f for f in storage.files(".arrow", ".parquet") if not PurePosixPath(f.name).name.startswith("cache-")]
    if not files:
        raise ConfigError(f"dataset 'huggingface' needs .arrow or .parquet files, got none in {root}: check root")
    chosen = _complete(storage, of_split(files, layout, split, root))
    columns = _columns(storage, chosen, layout)
    mapped = tuple(_as_arrow(storage, file, columns, layout) for file in chosen)
    tables = [_checked(file, place, columns) for file, place in zip(chosen, mapped, strict=True)]
    sizes = np.concatenate([_sizes(table.column(columns.image)) for table in tables])
    if not (sizes >= 0).any():
        raise ConfigError(f"column {columns.image!r} of {root} holds no images: write the dataset by its save_to_disk")
    labels, classes = _labels(tables, columns, root)
    if labels is not None and columns.names is None and split != "train":
        training = of_split(files, layout, "train", root, needed=False)
        known = table_images(root, "train", layout).classes if training else classes
        named = [(classes or ())[label] for label in labels]
        labels, classes = numbered(named, known or classes or (), root)
    ends = np.cumsum([len(table) for table in tables])
    return TableImages(mapped, tuple(f.name for f in chosen), columns.image, ends, sizes, labels, classes)


def _complete(storage: Storage, files: Sequence[StoredFile]) -> list[StoredFile]:
    """The files that make up the dataset: those its state.json lists, and of numbered ones all."""
    folders = defaultdict[str, list[StoredFile]](list)
    for file in files:
        folders[str(PurePosixPath(file.name).parent)].append(file)
    found = []
    for folder, there in folders.items():
        names = {PurePosixPath(file.name).name for file in there}
        state = storage.path(folder) / "state.json"
        listed = _listed(state) if state.is_file() else {name for known in names for name in _of_its_series(known)}
        if missing := sorted(listed - names):
            raise ConfigError(f"{storage.path(folder)} lacks {', '.join(missing[:3])}: copy the dataset again")
        found += [file for file in there if PurePosixPath(file.name).name in listed]
    if len({PurePosixPath(file.name).suffix for file in found}) > 1:
        raise ConfigError(f"{storage.root} holds a split as .arrow and as .parquet files: move one of them away")
    return found


def _listed(state: Path) -> set[str]:
    """The files that belong to the dataset; others may be left from an earlier one."""
    try:
        return {str(entry["filename"]) for entry in json.loads(state.read_bytes())["_data_files"]}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(str(state), error) from error


def _of_its_series(name: str) -> list[str]:
    """All names of data-00000-of-00003.arrow's kind."""
    if not (numbers := re.search(r"-(\d+)-of-(\d+)", name)):
        return [name]
    before, after, width = name[: numbers.start()], name[numbers.start(2) - 4 :], len(numbers[1])
    return [f"{before}-{number:0{width}d}{after}" for number in range(int(numbers[2]))]


def _columns(storage: Storage, files: Sequence[StoredFile], layout: Layout) -> Columns:
    schema = _schema(storage, files[0])
    about = _features(schema)
    types = {name: feature.get("_type") for name, feature in about.items()}
    image = _the(schema, layout.image, [n for n in types if types[n] == "Image"], ("image", "img"), "image_column")
    label = _the(schema, layout.label, [n for n in types if types[n] == "ClassLabel"], ("label",), "label_column")
    if image is None:
        raise ConfigError(
            f"a table needs a column of images, {files[0].name} has {', '.join(schema.names)}: set image_column"
        )
    kind = schema.field(image).type
    if not (_is_binary(kind) or (hasattr(kind, "get_field_index") and kind.get_field_index("bytes") >= 0)):
        raise ConfigError(
            f"a column of images holds the bytes of JPEG or PNG files, {image!r} holds {kind}: encode them"
        )
    names = about.get(label, {}).get("names") if label is not None and types.get(label) == "ClassLabel" else None
    return Columns(image, label, None if names is None else tuple(names))


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """What `datasets` says of the columns; nothing in tables of others."""
    try:
        said = json.loads(schema.metadata[b"huggingface"])["info"]["features"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {name: feature for name, feature in said if name in schema.names and isinstance(feature, dict)}


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary")


def _the(schema: Any, asked: str | None, typed: list[str], usual: Sequence[str], flag: str) -> str | None:
    """The column asked for, the only one of its type, or one of a usual name."""
    if asked is not None and asked not in schema.names:
        raise ConfigError(f"{flag} must be one of {', '.join(schema.names)}, got {asked!r}", fields=(flag,))
    if asked is None and len(typed) > 1:
        raise ConfigError(f"the table has the columns {' and '.join(typed)}: set {flag} to one", fields=(flag,))
    return asked or next(iter([*typed, *(name for name in usual if name in schema.names)]), None)


def _damaged(name: str, error: object) -> ConfigError:
    return ConfigError(f"every table must be a whole file, {name} is not ({error}): copy it again")


def _schema(storage: Storage, file: StoredFile) -> Any:
    pyarrow_fs()
    import pyarrow.parquet

    path = str(storage.path(file.name))
    try:
        if path.endswith(".parquet"):
            return pyarrow.parquet.read_schema(path)
        return _reader(path).schema
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file.name, error) from error


def _reader(path: str) -> Any:
    """Of Arrow's stream format, which datasets writes, or of its file format."""
    import pyarrow

    with open(path, "rb") as file:
        start = file.read(len(IPC_FILE))
        file.seek(-min(len(END_OF_STREAM), Path(path).stat().st_size), 2)
        end = file.read()
    source = pyarrow.memory_map(path)
    if start == IPC_FILE:
        return pyarrow.ipc.open_file(source)
    if end != END_OF_STREAM:  # whole batches may be missing, which the reader takes for the end
        raise pyarrow.ArrowInvalid("it has no end")
    return pyarrow.ipc.open_stream(source)


@cache
def _table(path: str, changed: int) -> Any:
    """A mapped file: no image is read before it is asked for, and processes share what is in memory."""
    return _reader(path).read_all()


def _checked(file: StoredFile, place: tuple[str, int], columns: Columns) -> Any:
    """A table with the columns, whose images lie within the file."""
    import pyarrow

    try:
        table = _table(*place)
        for name in set(columns.both) - set(table.column_names):
            raise _damaged(file.name, f"column {name!r} of the other tables is missing")
        for chunk in table.column(columns.image).chunks:
            _bytes_of(chunk).validate(full=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(file.name, error) from error
    return table


def _bytes_of(chunk: Any) -> Any:
    return chunk if _is_binary(chunk.type) else chunk.field("bytes")


def _sizes(column: Any) -> IntArray:
    """Bytes of each image; -1 where there is none."""
    import pyarrow.compute

    sizes = [pyarrow.compute.binary_length(_bytes_of(chunk)).fill_null(-1).to_numpy() for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *sizes]).astype(np.int64)


def _labels(tables: Sequence[Any], columns: Columns, root: str) -> tuple[IntArray | None, tuple[str, ...] | None]:
    if columns.label is None:
        return None, None
    found = [table.column(columns.label) for table in tables]
    if any(column.null_count for column in found):
        raise ConfigError(f"every row needs a class, column {columns.label!r} of {root} has gaps: set label_column")
    if str(found[0].type) in ("string", "large_string"):
        texts = [text for column in found for text in column.to_pylist()]
        return numbered(texts, texts, root)
    labels = np.concatenate([column.to_numpy() for column in found])
    if (labels == -1).all():  # how the hub publishes test sets whose classes are kept back
        return None, None
    names = columns.names or tuple(str(number) for number in range(int(labels.max()) + 1))
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(names):
        raise ConfigError(
            f"classes are numbered from 0 to {len(names) - 1}, column {columns.label!r} of {root} holds "
            f"{labels.min()} to {labels.max()}: set label_column"
        )
    return labels.astype(np.int64), names


def _as_arrow(storage: Storage, file: StoredFile, columns: Columns, layout: Layout) -> tuple[str, int]:
    """The Arrow file with the columns: the file itself, or what is made of a Parquet file, once.

    Parquet gives only whole groups of rows, about a hundred images to unpack for each one.
    """
    path = storage.path(file.name)
    if path.suffix == ".arrow":
        return str(path), file.changed
    target = kept(layout, "tables", VERSION, str(path.absolute()), file.size, file.changed, columns).with_suffix(
        ".arrow"
    )
    try:
        with locked(target.parent / ".lock"):
            if not target.exists():
                _unpack(path, target, columns)
    except OSError as error:
        raise ConfigError(
            f"Parquet files are unpacked into {target.parent}, which cannot be written ({error}): set cache_folder"
        ) from error
    return str(target), target.stat().st_mtime_ns


def _unpack(path: Path, target: Path, columns: Columns) -> None:
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as table, replacing(target) as partial:
            fields = pyarrow.schema([table.schema_arrow.field(name) for name in columns.both])
            with pyarrow.OSFile(str(partial), "wb") as sink, pyarrow.ipc.new_stream(sink, fields) as stream:
                for batch in table.iter_batches(ROWS_AT_A_TIME, columns=columns.both, use_threads=False):
                    stream.write_batch(pyarrow.RecordBatch.from_arrays(batch.columns, schema=fields))
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the disk, and not of what is on it
            raise
        raise _damaged(path.name, error) from error
