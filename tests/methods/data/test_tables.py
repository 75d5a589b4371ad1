"""Tables as Hugging Face's datasets writes them: which columns and files count, and what is damaged or missing."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sts_core import ConfigError
from sts_methods import DataConfig, ImageReadError
from sts_methods.data.image_files import read_image
from sts_methods.data.stored.tables import TableImages
from tests import processes
from tests.methods.data.stored_images import jpeg, samples, table, write_arrow, write_parquet, write_tables


def config_of(root: Path, **changes: Any) -> DataConfig:
    settings = {"image_size": 32, "views": "moco", "cache_folder": str(root.parent / "cache")}
    return DataConfig(dataset="huggingface", root=str(root), **(settings | changes))


def opened(root: Path, split: str = "train", **changes: Any) -> TableImages:
    source = config_of(root, **changes).open(split)  # type: ignore[arg-type]
    assert isinstance(source, TableImages)
    return source


WRITE = """
import sys
from pathlib import Path
import datasets
from tests.methods.data.stored_images import samples

datasets.disable_progress_bars()
features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])})
splits = {}
for name, first, num in (("train", 0, 24), ("test", 100, 6)):
    content = samples(first=first, num=num)
    rows = {"image": [{"bytes": one["jpg"], "path": None} for one in content.values()]}
    rows["label"] = [int(one["cls"]) for one in content.values()]
    splits[name] = datasets.Dataset.from_dict(rows, features=features)
root = Path(sys.argv[1])
datasets.DatasetDict(splits).save_to_disk(root / "disk", num_shards={"train": 3, "test": 1})
(root / "hub" / "data").mkdir(parents=True)
for name, split in splits.items():
    split.to_parquet(root / "hub" / "data" / f"{name}-00000-of-00001.parquet")
splits["train"].filter(lambda row: row["label"] == 2).save_to_disk(root / "owls")
"""


@pytest.mark.slow
def test_what_the_package_itself_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / "write.py").write_text(WRITE)
    there = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "HF_HOME": str(tmp_path / "home")}
    done = processes.run([sys.executable, tmp_path / "write.py", tmp_path], env=there)
    assert done.returncode == 0, done.stderr
    for name in ("disk", "hub"):
        for split, first, num in (("train", 0, 24), ("test", 100, 6)):
            source = opened(tmp_path / name, split)
            assert [source.encoded(n) for n in range(num)] == [jpeg(first + n) for n in range(num)]
            assert source.classes == ("cat", "dog", "owl")
            assert source.labels is not None
            assert source.labels.tolist() == [(first + n) % 3 for n in range(num)]
    owls = opened(tmp_path / "owls")  # of one split, which has no name
    assert [owls.encoded(n) for n in range(8)] == [jpeg(2 + 3 * n) for n in range(8)]


def test_the_fingerprint_knows_the_rows_and_not_their_files(tmp_path: Path) -> None:
    arrow, parquet = (opened(write_tables(tmp_path / suffix, suffix)) for suffix in ("arrow", "parquet"))
    assert arrow.fingerprint() == parquet.fingerprint()
    write_arrow(tmp_path / "other" / "train.arrow", table(samples(first=1)))
    assert opened(tmp_path / "other").fingerprint() != arrow.fingerprint()


def test_parquet_is_unpacked_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "hub" / "train.parquet", table(samples()))
    before = opened(tmp_path / "hub")
    (unpacked,) = (tmp_path / "cache" / "tables").glob("*.arrow")
    made = unpacked.stat().st_mtime_ns
    assert opened(tmp_path / "hub").fingerprint() == before.fingerprint()
    assert unpacked.stat().st_mtime_ns == made
    write_parquet(file, table(samples(first=40)))
    assert opened(tmp_path / "hub").encoded(0) == jpeg(40)


@pytest.mark.parametrize("suffix", ["arrow", "parquet"])
@pytest.mark.parametrize("damage", ["cut", "without its end", "overwritten", "empty"])
def test_a_damaged_table_is_named(tmp_path: Path, suffix: str, damage: str) -> None:
    root = write_tables(tmp_path / "tables", suffix)
    file = root / "train" / f"data-00001-of-00002.{suffix}"
    content = file.read_bytes()
    end = 8 if suffix == "arrow" else 4
    file.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "without its end": content[:-end],
            "overwritten": b"?" * 64 + content[64:],
            "empty": b"",
        }[damage]
    )
    with pytest.raises(ConfigError, match=rf"must be a whole file, (train/)?data-00001-of-00002.{suffix} is not \("):
        opened(root)


def test_missing_files_are_named(tmp_path: Path) -> None:
    root = write_tables(tmp_path / "tables", "arrow")
    (root / "train" / "data-00000-of-00002.arrow").unlink()
    with pytest.raises(ConfigError, match=r"train lacks data-00000-of-00002.arrow: copy the dataset again"):
        opened(root)
    state = {"_data_files": [{"filename": "data-00001-of-00002.arrow"}]}
    (root / "train" / "state.json").write_text(json.dumps(state))  # the other is left from an earlier save
    assert len(opened(root)) == 15
    (root / "train" / "state.json").write_text("{")
    with pytest.raises(ConfigError, match=r"must be a whole file, .*state.json is not \("):
        opened(root)
    with pytest.raises(ConfigError, match=r"needs \.arrow or \.parquet files, got none in .*: check root"):
        opened(tmp_path / "nowhere")


def test_a_row_without_an_image_is_named_like_an_unreadable_file(tmp_path: Path) -> None:
    content = samples(num=3)
    rows = table(content).to_pydict()
    rows["image"][1] = {"bytes": None, "path": "elsewhere.jpg"}
    made = pa.table(rows, schema=table(content).schema)
    source = opened(write_arrow(tmp_path / "tables" / "train.arrow", made).parent)
    with pytest.raises(ImageReadError, match=r"readable, row 1 of train.arrow is not \(the row holds no image\)"):
        read_image(source, 1)
    rows["image"] = [{"bytes": None, "path": "elsewhere.jpg"}] * 3
    root = write_arrow(tmp_path / "paths" / "train.arrow", pa.table(rows, schema=made.schema)).parent
    with pytest.raises(ConfigError, match=r"'image' of .* holds no images: write the dataset by its save_to_disk"):
        opened(root)


def test_columns_can_be_said_and_must_be_where_they_are_not_clear(tmp_path: Path) -> None:
    rows = table(samples(num=4), kind=["b", "a", "b", "a"], width=[1.5, 2, 3, 4])
    root = write_arrow(tmp_path / "tables" / "train.arrow", rows).parent
    named = opened(root, label_column="kind")
    assert named.classes == ("a", "b")
    assert named.labels is not None
    assert named.labels.tolist() == [1, 0, 1, 0]
    with pytest.raises(ConfigError, match="label_column must be one of image, label, kind, width, got 'species'"):
        opened(root, label_column="species")
    with pytest.raises(ConfigError, match="holds the bytes of JPEG or PNG files, 'kind' holds string"):
        opened(root, image_column="kind")
    two = {"info": {"features": {name: {"_type": "ClassLabel", "names": ["x"]} for name in ("label", "width")}}}
    write_arrow(root / "train.arrow", rows.replace_schema_metadata({"huggingface": json.dumps(two)}))
    with pytest.raises(ConfigError, match="the table has the columns label and width: set label_column to one"):
        opened(root)
    write_arrow(root / "train.arrow", rows.drop_columns(["image"]))
    with pytest.raises(ConfigError, match=r"needs a column of images, train\.arrow has label, kind, width"):
        opened(root)


def test_classes_are_those_of_the_training_set(tmp_path: Path) -> None:
    root = tmp_path / "tables"
    plain = table(samples(num=4)).replace_schema_metadata(None)
    write_arrow(root / "train.arrow", plain)
    write_arrow(root / "val.arrow", plain.slice(0, 2))
    test = opened(root, "test")
    assert test.classes == ("0", "1", "2")
    write_arrow(root / "odd.arrow", table(samples(num=2), label=[7, 0]).replace_schema_metadata(None))
    with pytest.raises(ConfigError, match="must be those of the training set, which has no '7'"):
        opened(root, "test", test_split="odd")
    write_arrow(root / "val.arrow", plain.replace_schema_metadata({"huggingface": "{"}))  # of somebody else's
    assert opened(root, "test").classes == ("0", "1", "2")
    kept_back = table(samples(num=2), label=[-1, -1])
    write_arrow(root / "test.arrow", kept_back)
    assert opened(root, "test", test_split="test").labels is None
    write_arrow(root / "test.arrow", table(samples(num=2), label=[-1, 3]))
    with pytest.raises(ConfigError, match=r"numbered from 0 to 2, column 'label' of .* holds -1 to 3"):
        opened(root, "test", test_split="test")
