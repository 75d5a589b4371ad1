"""Readers and generators of corruption benchmarks, on small trees of the released layouts."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sts_core.errors import ConfigError, StateError
from sts_eval.corruptions import generated
from sts_eval.corruptions.arrays import ArrayCorruptions
from sts_eval.corruptions.folders import FolderCorruptions
from sts_eval.corruptions.functions import corrupt_image, corruption_key
from sts_eval.corruptions.generated import CleanArrays, CleanFolder, GeneratedCorruptions
from sts_eval.errors import DataError

CLASSES = ("n01", "n02")


def write_image(path: Path, value: int, side: int = 40) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = (np.arange(side * side * 3) * 7 + value).reshape(side, side, 3) % 256
    Image.fromarray(pixels.astype(np.uint8)).save(path)


def write_tree(root: Path, corruptions: list[str], severities: range = range(1, 6)) -> Path:
    for corruption in corruptions:
        for severity in severities:
            for index, name in enumerate(("n01/a", "n01/b", "n02/a")):
                write_image(root / corruption / str(severity) / f"{name}.JPEG", 10 * severity + index)
    return root


def write_clean(root: Path) -> Path:
    for index, name in enumerate(("n01/a", "n01/b", "n02/a")):
        write_image(root / f"{name}.JPEG", 30 * index, side=48)
    return root


def files_in(root: Path) -> set[Path]:
    return {path.relative_to(root) for path in root.rglob("*") if path.is_file()}


def test_a_released_folder_is_read_with_labels_in_the_order_of_its_classes(tmp_path: Path) -> None:
    source = FolderCorruptions(write_tree(tmp_path, ["fog", "snow"]), image_size=32)
    assert source.corruptions == ("snow", "fog")  # the benchmark's order
    assert source.classes == CLASSES
    cell = source.cell("fog", 2)
    assert [cell[i][1] for i in range(len(cell))] == [0, 0, 1]
    image, _ = cell[0]
    decoded = np.asarray(Image.open(tmp_path / "fog/2/n01/a.JPEG"))
    assert np.array_equal(image, decoded[4:36, 4:36])


def test_folders_inside_the_archives_folders_are_found_too(tmp_path: Path) -> None:
    write_tree(tmp_path / "noise", ["gaussian_noise"])
    write_tree(tmp_path / "extra", ["spatter"])
    source = FolderCorruptions(tmp_path, image_size=32)
    assert source.corruptions == ("gaussian_noise", "spatter")
    assert len(source.cell("spatter", 5)) == 3


def test_a_missing_severity_is_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    write_tree(tmp_path, ["snow"])
    write_tree(tmp_path, ["fog"], range(1, 5))
    with pytest.raises(DataError, match=r"fog has no folder 5 in .*fog: unpack weather.tar again or leave fog out"):
        FolderCorruptions(tmp_path, image_size=32)
    assert FolderCorruptions(tmp_path, severities=[4, 1], image_size=32).severities == (1, 4)


def test_a_missing_or_an_unknown_corruption_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, ["fog"])
    with pytest.raises(DataError, match=r"must hold snow, it does not: unpack weather.tar there"):
        FolderCorruptions(tmp_path, corruptions=["fog", "snow"], image_size=32)
    with pytest.raises(ConfigError, match="got 'rain'"):
        FolderCorruptions(tmp_path, corruptions=["rain"], image_size=32)
    with pytest.raises(DataError, match="it has no corruption: point to the folder"):
        FolderCorruptions(tmp_path / "fog", image_size=32)


def test_a_cell_that_lacks_an_image_or_has_one_more_is_refused_before_anything_is_evaluated(tmp_path: Path) -> None:
    write_tree(tmp_path, ["snow", "fog"])
    (tmp_path / "fog/5/n01/b.JPEG").unlink()
    with pytest.raises(DataError, match=r"n01/b.JPEG is in .*snow/1 but not in .*fog/5: unpack weather.tar again"):
        FolderCorruptions(tmp_path, image_size=32)
    write_image(tmp_path / "fog/5/n01/b.JPEG", 0)
    write_image(tmp_path / "fog/4/n02/c.JPEG", 0)
    with pytest.raises(DataError, match=r"n02/c.JPEG is in .*fog/4 but not in .*snow/1"):
        FolderCorruptions(tmp_path, image_size=32)


def test_images_that_differ_in_their_ending_only_are_refused(tmp_path: Path) -> None:
    for root in [tmp_path / f"fog/{severity}/n01" for severity in range(1, 6)]:
        write_image(root / "a.png", 0)
        write_image(root / "a.JPEG", 1)
    with pytest.raises(DataError, match=r"differ in more than their ending, n01/a.JPEG and n01/a.png in .* rename one"):
        FolderCorruptions(tmp_path, image_size=32)
    with pytest.raises(DataError, match="differ in more than their ending"):
        CleanFolder(tmp_path / "fog/1", image_size=32)  # a cache would keep both under one name


def test_a_cell_that_lacks_a_class_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, ["fog"])
    (tmp_path / "fog/4/n02/a.JPEG").unlink()
    with pytest.raises(DataError, match=r"every class needs an image, .*fog/4/n02 has none"):
        FolderCorruptions(tmp_path, image_size=32)
    (tmp_path / "fog/4/n02").rmdir()
    with pytest.raises(DataError, match=r"fog/4 differs in n02: complete the folder"):
        FolderCorruptions(tmp_path, image_size=32)


def test_classes_other_than_the_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"differs in n03"):
        FolderCorruptions(write_tree(tmp_path, ["fog"]), classes=("n01", "n02", "n03"), image_size=32)


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    write_tree(tmp_path, ["fog"])
    path = tmp_path / "fog/1/n01/b.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(
        DataError, match=r"every image must be readable, .*fog/1/n01/b.JPEG is not .*: repair it or copy"
    ):
        FolderCorruptions(tmp_path, image_size=32).cell("fog", 1)[1]


def test_an_image_smaller_than_the_crop_is_refused(tmp_path: Path) -> None:
    cell = FolderCorruptions(write_tree(tmp_path, ["fog"])).cell("fog", 1)
    with pytest.raises(DataError, match=r"at least 224x224 pixels, .* is 40x40: pass the image_size"):
        cell[0]


def write_arrays(root: Path, num_images: int = 4) -> np.ndarray:
    root.mkdir(exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (5 * num_images, 32, 32, 3), dtype=np.uint8)
    np.save(root / "fog.npy", images)
    np.save(root / "saturate.npy", images[::-1])
    np.save(root / "labels.npy", np.tile(np.arange(num_images, dtype=np.uint8), 5))
    return images


def test_cifar_10_c_keeps_the_five_severities_in_a_row(tmp_path: Path) -> None:
    images = write_arrays(tmp_path)
    source = ArrayCorruptions(tmp_path)
    assert source.corruptions == ("fog", "saturate")
    assert source.num_classes == 4
    cell = pickle.loads(pickle.dumps(source.cell("fog", 3)))  # noqa: S301 - as a loader process receives it
    assert len(cell) == 4
    assert np.array_equal(cell[1][0], images[2 * 4 + 1])
    assert cell[1][1] == 1


def test_an_opened_array_cell_is_not_pickled_with_its_images(tmp_path: Path) -> None:
    write_arrays(tmp_path, num_images=400)
    cell = ArrayCorruptions(tmp_path).cell("fog", 1)
    cell[0]
    assert len(pickle.dumps(cell)) < 100_000


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("fog.npy", np.zeros((19, 32, 32, 3), np.uint8), r"shape \[5N, height, width, 3\].* \(19, 32, 32, 3\)"),
        ("fog.npy", np.zeros((20, 32, 32, 3), np.float32), "is float32"),
        ("fog.npy", np.zeros((25, 32, 32, 3), np.uint8), "fog.npy has 25 and saturate.npy 20"),
        ("labels.npy", np.zeros(7), r"must have 20 or 4 labels, .* shape \(7,\)"),
    ],
)
def test_arrays_of_another_layout_are_refused(tmp_path: Path, name: str, array: np.ndarray, message: str) -> None:
    write_arrays(tmp_path)
    np.save(tmp_path / name, array)
    with pytest.raises(DataError, match=message):
        ArrayCorruptions(tmp_path)


def test_labels_beyond_the_classes_and_arrays_without_images_are_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    with pytest.raises(DataError, match=r"labels must lie in 0\.\.2, got 0\.\.3: renumber the classes"):
        ArrayCorruptions(tmp_path, num_classes=3)
    assert ArrayCorruptions(tmp_path, num_classes=10).num_classes == 10
    write_arrays(tmp_path, num_images=0)
    with pytest.raises(DataError, match="must hold at least one image, but it is empty"):
        ArrayCorruptions(tmp_path)
    with pytest.raises(DataError, match="must hold at least one image, but it is empty"):
        CleanArrays(np.zeros((0, 32, 32, 3), np.uint8), [])
    with pytest.raises(DataError, match=r"clean labels must lie in 0\.\.1, got 0\.\.2"):
        CleanArrays(np.zeros((2, 32, 32, 3), np.uint8), [0, 2], num_classes=2)


def test_a_torn_or_missing_array_is_refused(tmp_path: Path) -> None:
    write_arrays(tmp_path)
    (tmp_path / "fog.npy").write_bytes((tmp_path / "fog.npy").read_bytes()[:500])
    with pytest.raises(DataError, match=r"every array must be readable, .*fog.npy is not"):
        ArrayCorruptions(tmp_path)
    with pytest.raises(DataError, match=r"must hold snow.npy, it does not"):
        ArrayCorruptions(tmp_path, corruptions=["snow"])
    with pytest.raises(DataError, match="it has none: point to the folder"):
        ArrayCorruptions(tmp_path / "elsewhere")


class TestGenerated:
    def test_a_generated_image_is_the_corrupted_crop_after_jpeg_85(self, tmp_path: Path) -> None:
        clean = CleanFolder(write_clean(tmp_path), image_size=42)  # 42 * 256 / 224 = 48: nothing is resized
        source = GeneratedCorruptions(clean, corruptions=["contrast"], seed=5)
        crop = np.asarray(Image.open(tmp_path / "n02/a.JPEG"))[3:45, 3:45]
        expected = corrupt_image(crop, "contrast", 2, key=corruption_key(5, "n02/a", "contrast", 2))
        buffer = io.BytesIO()
        Image.fromarray(expected).save(buffer, "JPEG", quality=85)
        image, label = source.cell("contrast", 2)[2]
        assert label == 1
        assert np.array_equal(image, np.asarray(Image.open(buffer)))

    def test_the_cache_holds_the_released_layout_and_changes_nothing(self, tmp_path: Path) -> None:
        clean = CleanFolder(write_clean(tmp_path / "clean"), image_size=42)
        names = ["gaussian_noise", "impulse_noise"]
        plain = GeneratedCorruptions(clean, corruptions=names)
        cached = GeneratedCorruptions(clean, corruptions=names, cache=tmp_path / "cache")
        for name in names:
            for severity in (1, 2, 3, 4, 5):
                first = [cached.cell(name, severity)[i][0] for i in range(3)]
                again = [cached.cell(name, severity)[i][0] for i in range(3)]
                fresh = [plain.cell(name, severity)[i][0] for i in range(3)]
                assert np.array_equal(first, fresh)
                assert np.array_equal(again, fresh)
        released = FolderCorruptions(tmp_path / "cache", image_size=42)
        assert released.corruptions == tuple(names)
        assert np.array_equal(released.cell("impulse_noise", 5)[1][0], plain.cell("impulse_noise", 5)[1][0])
        assert released.cell("impulse_noise", 5).digest == plain.cell("impulse_noise", 5).digest

    def test_a_cached_image_is_read_and_not_computed_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clean = CleanFolder(write_clean(tmp_path / "clean"), image_size=42)
        cell = GeneratedCorruptions(clean, cache=tmp_path / "cache").cell("contrast", 1)
        image, _ = cell[0]
        monkeypatch.setattr(generated, "corrupt_image", lambda *_, **__: pytest.fail("computed again"))
        assert np.array_equal(cell[0][0], image)

    def test_a_failure_leaves_nothing_half_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_clean(tmp_path / "clean")
        (tmp_path / "clean/n01/b.JPEG").write_bytes(b"not an image")
        clean = CleanFolder(tmp_path / "clean", image_size=42)
        cell = GeneratedCorruptions(clean, cache=tmp_path / "cache").cell("contrast", 1)
        with pytest.raises(DataError, match=r"n01/b.JPEG is not"):
            [cell[i] for i in range(3)]
        done = {Path("corruptions.json"), Path("contrast/1/n01/a.JPEG")}
        assert files_in(tmp_path / "cache") == done

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("sts_core.files.os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            cell[2]
        assert files_in(tmp_path / "cache") == done

    def test_a_cache_of_other_images_or_another_seed_is_refused(self, tmp_path: Path) -> None:
        clean = CleanFolder(write_clean(tmp_path / "clean"), image_size=42)
        GeneratedCorruptions(clean, seed=1, cache=tmp_path / "cache")
        with pytest.raises(StateError, match=r"was made with seed 1 and not 2: choose another folder or delete"):
            GeneratedCorruptions(clean, seed=2, cache=tmp_path / "cache")
        with pytest.raises(StateError, match="must be empty or one of ours"):
            GeneratedCorruptions(clean, cache=tmp_path / "clean")

    def test_a_cache_of_another_generator_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        clean = CleanArrays(np.zeros((2, 32, 32, 3), dtype=np.uint8), [0, 1])
        with monkeypatch.context() as older:
            older.setattr(GeneratedCorruptions, "generator", "an older one")
            GeneratedCorruptions(clean, cache=tmp_path / "cache")
        with pytest.raises(StateError, match="was made with generator 'an older one' and not 'sts-eval 2'"):
            GeneratedCorruptions(clean, cache=tmp_path / "cache")

    def test_a_source_says_whose_strengths_it_has(self) -> None:
        for side, table in ((32, "CIFAR-10-C"), (64, "ImageNet-C")):
            clean = CleanArrays(np.zeros((1, side, side, 3), dtype=np.uint8), [0])
            assert GeneratedCorruptions(clean).describe()["parameters"] == table

    def test_a_cache_of_other_pixels_under_the_same_labels_is_refused(self, tmp_path: Path) -> None:
        images = np.zeros((2, 32, 32, 3), dtype=np.uint8)
        GeneratedCorruptions(CleanArrays(images, [0, 1]), cache=tmp_path / "cache")
        with pytest.raises(StateError, match=r"was made with pixels"):
            GeneratedCorruptions(CleanArrays(images + 1, [0, 1]), cache=tmp_path / "cache")

    def test_a_cache_of_a_clean_image_that_was_replaced_is_refused(self, tmp_path: Path) -> None:
        clean = write_clean(tmp_path / "clean")
        GeneratedCorruptions(CleanFolder(clean, image_size=42), cache=tmp_path / "cache")
        clean = clean.rename(tmp_path / "moved")
        GeneratedCorruptions(CleanFolder(clean, image_size=42), cache=tmp_path / "cache")
        write_image(clean / "n01/b.JPEG", 5, side=48)
        with pytest.raises(StateError, match=r"was made with pixels"):
            GeneratedCorruptions(CleanFolder(clean, image_size=42), cache=tmp_path / "cache")

    def test_ranks_may_begin_the_same_cache_at_once(self, tmp_path: Path) -> None:
        (tmp_path / ".corruptions.json.x1y2").touch()  # what write_atomically renames in the end
        GeneratedCorruptions(CleanArrays(np.zeros((2, 32, 32, 3), np.uint8), [0, 1]), cache=tmp_path)
        assert (tmp_path / "corruptions.json").is_file()

    @pytest.mark.parametrize("content", ['{"source"', "[1]", "7"])
    def test_a_cache_with_a_damaged_card_is_refused(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "corruptions.json").write_text(content)
        with pytest.raises(StateError, match=r"corruptions.json is damaged: delete "):
            GeneratedCorruptions(CleanArrays(np.zeros((2, 32, 32, 3), np.uint8), [0, 1]), cache=tmp_path)

    @pytest.mark.parametrize("num_bytes", [0, 50, 500])
    def test_a_damaged_file_of_a_cache_is_made_again(self, tmp_path: Path, num_bytes: int) -> None:
        images = np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        folder = CleanFolder(write_clean(tmp_path / "clean"), image_size=42)
        for clean, file in ((CleanArrays(images, [0, 1]), "2.npy"), (folder, "2/n01/a.JPEG")):
            cache = tmp_path / type(clean).__name__
            source = GeneratedCorruptions(clean, cache=cache)
            image, _ = source.cell("contrast", 2)[0]
            path = cache / "contrast" / file
            whole = path.read_bytes()
            path.write_bytes(whole[:num_bytes])
            assert np.array_equal(source.cell("contrast", 2)[0][0], image)
            assert path.read_bytes() == whole

    def test_arrays_of_32_px_are_corrupted_and_cached_as_they_are(self, tmp_path: Path) -> None:
        images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
        clean = CleanArrays(images, [0, 1, 1])
        plain = GeneratedCorruptions(clean, seed=4)
        cached = GeneratedCorruptions(clean, seed=4, cache=tmp_path)
        for name in plain.corruptions:
            expected = corrupt_image(images[2], name, 5, key=corruption_key(4, "2", name, 5))
            assert np.array_equal(plain.cell(name, 5)[2][0], expected)
            assert np.array_equal(cached.cell(name, 5)[2][0], expected)
        assert cached.cell("fog", 5)[2][1] == 1
        assert (tmp_path / "fog/5.npy").is_file()

    def test_images_below_32_px_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="at least 32 px, got 28"):
            CleanArrays(np.zeros((2, 28, 28, 3), np.uint8), [0, 1])
