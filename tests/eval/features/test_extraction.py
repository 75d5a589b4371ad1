import copy
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from sts_core.errors import ConfigError, StateError
from sts_eval import DataError, FeatureConfig, extract_features, image_folder
from sts_eval.features.cache import NUM_PROBES, dataset_fingerprint
from sts_eval.features.unchanged import digest_of, unchanged
from sts_methods import DataConfig, evaluation_data
from sts_methods.data.datasets import IMAGENET_STATISTICS, open_source
from sts_methods.data.evaluation_set import EvaluationDataset
from sts_methods.data.stored.shards import ShardImages
from tests.methods.data.stored_images import write_shards


class Stops(torch.utils.data.Dataset):
    """A dataset whose reading fails from a certain sample on; counts what was read."""

    def __init__(self, dataset, last):
        self.dataset, self.last, self.read = dataset, last, []

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.read.append(index)
        if self.last is not None and index > self.last:
            raise KeyboardInterrupt  # not an error of the image: the process is being stopped
        return self.dataset[index]


def probes(dataset):
    return {i * (len(dataset) - 1) // 7 for i in range(8)}


def make_folder(root: Path, classes: int, images: int) -> Path:
    for c in range(classes):
        (root / f"class{c}").mkdir(parents=True)
        for i in range(images):
            pixels = np.random.default_rng(10 * c + i).integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / f"class{c}" / f"{i}.png")
    return root


@pytest.fixture
def files(tmp_path):
    return image_folder(make_folder(tmp_path / "images", 2, 30), image_size=16)


def test_features_are_the_backbones_output_in_order(digit_images, small_network):
    network, (train, _) = small_network(0), digit_images
    features = extract_features(network, train, FeatureConfig(batch_size=100))
    with torch.no_grad():
        expected = network.eval()(train.images)
    assert torch.allclose(features.values, expected, atol=1e-6)
    assert torch.equal(features.labels, train.targets)
    assert features.classes == tuple(train.classes)


def test_weights_batch_norm_statistics_and_modes_are_untouched(digit_images, small_network):
    network = small_network(0)
    network[1].eval()
    modes = [module.training for module in network.modules()]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    extract_features(network, digit_images[0])
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert [module.training for module in network.modules()] == modes


def test_a_network_that_changes_itself_while_it_is_measured_is_found_out(digit_images):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, images):
            self.calls += 1
            return images.flatten(1)

    with pytest.raises(StateError, match="must not change the network"):
        extract_features(Counts(), digit_images[0])


def test_the_digest_sees_a_single_bit_and_a_buffer(small_network):
    network = small_network(0)
    first = digest_of(network)
    assert digest_of(small_network(0)) == first
    with torch.no_grad():
        network[0].weight[0, 0, 0, 0] += 1e-7 * network[0].weight[0, 0, 0, 0].abs() + 1e-9
    second = digest_of(network)
    network[1].num_batches_tracked += 1
    assert len({first, second, digest_of(network)}) == 3


def test_the_original_error_of_a_block_is_not_hidden_by_the_check(small_network):
    network = small_network(0)
    with pytest.raises(ZeroDivisionError), unchanged(network):
        raise ZeroDivisionError


def test_a_cache_gives_the_same_features_without_reading_the_files_again(tmp_path, files):
    network, data = nn.Flatten(), Stops(files, None)
    fresh = extract_features(network, data, cache=tmp_path / "cache")
    data.read.clear()
    cached = extract_features(network, data, FeatureConfig(batch_size=33), cache=tmp_path / "cache")
    assert torch.equal(fresh.values, cached.values)
    assert torch.equal(fresh.labels, cached.labels)
    assert set(data.read) == probes(data)  # the samples that identify the dataset, and no others


def test_a_stopped_extraction_resumes_where_it_stopped(tmp_path, files):
    network, config, cache = nn.Flatten(), FeatureConfig(batch_size=5), tmp_path / "cache"
    whole = extract_features(network, files, config)

    class StopsInPass(Stops):
        """Stops in the pass over all samples, not while the dataset is identified."""

        def __getitem__(self, index):
            allowed = index in probes(self) and len(self.read) < 12
            self.read.append(index)
            if self.last is not None and index > self.last and not allowed:
                raise KeyboardInterrupt
            return self.dataset[index]

    data = StopsInPass(files, 42)
    with pytest.raises(KeyboardInterrupt):
        extract_features(network, data, config, cache=cache)
    assert [path.suffix for path in cache.glob("[!.]*")] == [".partial"]
    data.last = None
    data.read.clear()
    resumed = extract_features(network, data, FeatureConfig(batch_size=64), cache=cache)
    assert torch.allclose(resumed.values, whole.values, atol=1e-6)
    assert torch.equal(resumed.labels, whole.labels)
    again = [index for index in data.read if index < 40 and index not in probes(data)]
    assert again == []  # eight blocks of five were on disk
    assert [path.suffix for path in cache.glob("[!.]*")] == [""]


def test_who_finds_a_cache_being_filled_waits_for_it(tmp_path, files):
    cache, half, go_on = tmp_path / "cache", threading.Event(), threading.Event()

    class Pauses(Stops):
        def __getitem__(self, index):
            if len(self.read) == 40:
                half.set()
                assert go_on.wait(60)
            return super().__getitem__(index)

    first, second, found = Pauses(files, None), Stops(files, None), {}

    def extract(name, dataset):
        found[name] = extract_features(nn.Flatten(), dataset, cache=cache)

    threads = [threading.Thread(target=extract, args=pair) for pair in (("first", first), ("second", second))]
    threads[0].start()
    assert half.wait(60)
    threads[1].start()
    while len(second.read) < len(probes(second)):
        time.sleep(0.01)
    time.sleep(0.3)  # for the second to do what it must not
    go_on.set()
    for thread in threads:
        thread.join()
    assert torch.equal(found["first"].values, found["second"].values)
    assert found["first"].values.abs().sum(dim=1).min() > 0
    assert set(second.read) == probes(second)
    assert [path.suffix for path in cache.glob("[!.]*")] == [""]


def test_other_weights_another_dataset_or_another_precision_get_their_own_cache(tmp_path, digit_images, small_network):
    train, test = digit_images
    extract_features(small_network(0), train, cache=tmp_path)
    extract_features(small_network(1), train, cache=tmp_path)
    extract_features(small_network(0), test, cache=tmp_path)
    extract_features(small_network(0), train, FeatureConfig(precision="bfloat16"), cache=tmp_path)
    assert len(list(tmp_path.glob("[!.]*"))) == 4
    meta = [json.loads((folder / "meta.json").read_text()) for folder in tmp_path.glob("[!.]*")]
    assert {m["format"] for m in meta} == {"sts-features"}


def test_changing_cached_features_in_memory_leaves_the_file_alone(tmp_path, digit_images, small_network):
    first = extract_features(small_network(0), digit_images[0], cache=tmp_path)
    kept = first.values.clone()
    first.values.zero_()
    second = extract_features(small_network(0), digit_images[0], cache=tmp_path)
    assert torch.equal(second.values, kept)


def test_a_cache_knows_every_file_and_the_transform_but_not_the_folder(tmp_path):
    def extract(dataset):
        extract_features(nn.Flatten(), dataset, cache=tmp_path / "cache")
        return len(list((tmp_path / "cache").glob("[!.]*")))

    # What is changed here is none of the samples whose pixels count.
    root = make_folder(tmp_path / "images", 2, 20)
    assert extract(image_folder(root, image_size=16)) == 1
    root = root.rename(tmp_path / "moved")
    assert extract(image_folder(root, image_size=16)) == 1
    (root / "class1" / "11.png").rename(root / "class1" / "11b.png")
    assert extract(image_folder(root, image_size=16)) == 2
    os.utime(root / "class1" / "11b.png", (0, 0))  # as after a change that leaves the size as it was
    assert extract(image_folder(root, image_size=16)) == 3
    assert extract(image_folder(root, image_size=16, resize=30)) == 4


def test_a_cache_knows_every_pixel_and_label_of_a_dataset_in_memory(tmp_path, digit_images):
    images, labels = digit_images[0].images.clone(), digit_images[0].targets.clone()
    listed = copy.deepcopy(digit_images[0])
    for changed in (lambda: None, lambda: images[3].add_(1), lambda: labels[3].add_(1)):
        changed()
        listed.images, listed.targets = images, labels
        for dataset in (TensorDataset(images, labels), listed):
            found = extract_features(nn.Flatten(), dataset, cache=tmp_path)
            assert torch.equal(found.values, images.flatten(1))
            assert torch.equal(found.labels, labels)


def test_the_files_of_the_training_packages_dataset_are_not_all_read_to_identify_them(tmp_path):
    root = make_folder(tmp_path / "train", 2, 30)
    source = open_source("imagefolder", str(tmp_path), "train", image_size=16)
    data = Stops(EvaluationDataset(source, image_size=16, statistics=IMAGENET_STATISTICS), None)
    first = dataset_fingerprint(data, "")
    assert set(data.read) == probes(data)
    os.utime(root / "class1" / "11.png", (0, 0))
    assert dataset_fingerprint(data, "") != first


def test_what_a_dataset_says_of_its_content_takes_the_place_of_reading_it(tmp_path, monkeypatch):
    read = []
    encoded = ShardImages.encoded
    monkeypatch.setattr(ShardImages, "encoded", lambda self, index: read.append(index) or encoded(self, index))

    def identified(num_shards):
        root = write_shards(tmp_path / f"{num_shards}", num_shards)
        config = DataConfig(dataset="webdataset", root=str(root), cache_folder=str(tmp_path / "cache"), image_size=16)
        return dataset_fingerprint(evaluation_data(config)[0], "")

    first = identified(3)
    assert len(read) == NUM_PROBES < 24
    assert identified(2) == first
    monkeypatch.setattr(ShardImages, "fingerprint", lambda self: "others")
    assert identified(3) != first


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("name", "change"),
    [("values.f32", lambda content: content[:-4]), ("labels.i64", None)]
    + [("meta.json", lambda content, keep=keep: content[:keep]) for keep in (0, 20)],
)
def test_a_damaged_cache_is_refused_with_the_folder_to_delete(tmp_path, digit_images, name, change, partial):
    def extract():
        extract_features(nn.Flatten(), digit_images[0], cache=tmp_path)

    extract()
    (folder,) = tmp_path.glob("[!.]*")
    if partial:
        folder = folder.rename(folder.with_name(folder.name + ".partial"))
        (folder / "blocks.u8").write_bytes(bytes(2))
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if change is not None:
        (folder / name).write_bytes(change(content))
    with pytest.raises(StateError, match=rf"{name}.*: delete {folder}$"):
        extract()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_unreadable_image_is_named_in_one_sentence(tmp_path, num_workers):
    root = make_folder(tmp_path / "images", 2, 3)
    bad = root / "class1" / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    dataset = image_folder(root, image_size=16)
    config = FeatureConfig(batch_size=2, num_workers=num_workers)
    with pytest.raises(DataError) as caught:
        extract_features(nn.Flatten(), dataset, config, cache=tmp_path / "cache")
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "cache").glob("[!.]*") if path.suffix != ".partial"]


def test_loader_processes_change_nothing(tmp_path):
    dataset = image_folder(make_folder(tmp_path / "images", 2, 5), image_size=16)
    here = extract_features(nn.Flatten(), dataset, FeatureConfig(batch_size=3))
    there = extract_features(nn.Flatten(), dataset, FeatureConfig(batch_size=3, num_workers=2))
    assert torch.equal(here.values, there.values)
    assert here.values.shape == (10, 3 * 16 * 16)


def test_images_without_a_transform_are_refused_by_name(tmp_path):
    dataset = image_folder(make_folder(tmp_path / "images", 1, 2), image_size=None)
    with pytest.raises(DataError, match=r"0\.png is not \(Image in place of a normalised float tensor\)"):
        extract_features(nn.Flatten(), dataset)


def test_a_missing_or_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="does not: check the path"):
        image_folder(tmp_path / "nowhere")
    (tmp_path / "empty" / "class0").mkdir(parents=True)
    with pytest.raises(DataError, match="class0"):
        image_folder(tmp_path / "empty")


def test_unpooled_and_non_finite_outputs_are_refused(digit_images):
    with pytest.raises(ConfigError, match="pooled features"):
        extract_features(nn.Identity(), digit_images[0])

    class Broken(nn.Module):
        def forward(self, images):
            return images.flatten(1) / 0.0

    with pytest.raises(StateError, match="finite"):
        extract_features(Broken(), digit_images[0])


def test_the_scores_of_a_classifier_are_not_taken_for_features_in_silence(digit_images):
    images = TensorDataset(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    whole = timm.create_model("resnet10t")
    with pytest.warns(UserWarning, match=r"this network ends in one \(fc\)"):
        extract_features(whole, images)
    assert extract_features(timm.create_model("resnet10t", num_classes=0), images).values.shape == (2, 512)


def test_a_transformer_of_another_size_is_one_sentence():
    images = TensorDataset(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match=r"takes no images of 32x32 \(Input height \(32\) .*\): resize them"):
        extract_features(timm.create_model("vit_tiny_patch16_224", num_classes=0), images)
