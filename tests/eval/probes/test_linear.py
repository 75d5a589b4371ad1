import copy
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from sts_core.errors import ConfigError, StateError
from sts_eval import (
    DataError,
    Features,
    LinearProbeConfig,
    byol_protocol,
    classification_accuracy,
    fast_protocol,
    linear_probe,
    linear_probes,
    moco_protocol,
)
from sts_eval.probes.linear.heads import ParallelHeads
from sts_eval.probes.linear.sources import CachedFeatures
from sts_eval.probes.linear.training import SgdProbe, train_together


def trained_alone(config: LinearProbeConfig, data: Features, rate: float) -> nn.Module:
    """The slow, obvious way: torch's own layers and optimizer, one classifier at a time."""
    heads = ParallelHeads(replace(config, learning_rates=(rate,)), data.values.shape[1], 10, torch.device("cpu"))
    linear = nn.Linear(data.values.shape[1], 10)
    with torch.no_grad():
        linear.weight.copy_(heads.parameters["weight"])
        linear.bias.zero_()
    model = nn.Sequential(linear, nn.BatchNorm1d(10)) if config.batch_norm else linear
    optimizer = torch.optim.SGD(
        model.parameters(), rate, config.momentum, weight_decay=config.weight_decay, nesterov=config.nesterov
    )
    source = CachedFeatures(data, config)
    steps = -(-len(data) // config.batch_size)
    for epoch in range(config.epochs):
        for index, (values, labels, _) in enumerate(source.epoch(epoch)):
            optimizer.param_groups[0]["lr"] = rate * config.rate_factor(epoch * steps + index, steps)
            optimizer.zero_grad()
            F.cross_entropy(model(values), labels).backward()
            optimizer.step()
    return model.eval()


@pytest.mark.parametrize(
    "config",
    [
        moco_protocol(augment=False, learning_rates=(0.1, 1.0, 30.0), epochs=3, milestones=(1, 2)),
        byol_protocol(augment=False, learning_rates=(0.05, 0.2), epochs=3),
        byol_protocol(augment=False, batch_norm=False, learning_rates=(0.05, 0.2), epochs=3, nesterov=True),
        moco_protocol(augment=False, learning_rates=(0.1, 0.3), epochs=2, weight_decay=1e-3),
    ],
    ids=["moco", "byol", "byol-plain-nesterov", "weight-decay"],
)
def test_parallel_heads_equal_classifiers_trained_one_by_one(config, digit_features):
    train, test = digit_features
    result = linear_probe(train, test, config)
    for rate, head in zip(config.learning_rates, result.heads, strict=True):
        predicted = trained_alone(config, train, rate)(test.values).argmax(1)
        alone = 100.0 * float((predicted == test.labels).double().mean())
        assert head.setting == rate
        assert head.last[1] == pytest.approx(alone, abs=0.12)  # one of 898 digits on the boundary


def test_the_weights_of_parallel_heads_equal_those_trained_alone(digit_features):
    train, _ = digit_features
    config = byol_protocol(augment=False, learning_rates=(0.05, 0.2), epochs=2)
    heads = ParallelHeads(config, 64, 10, torch.device("cpu"))
    source, steps = CachedFeatures(train, config), -(-len(train) // 256)
    for epoch in range(2):
        for index, (values, labels, count) in enumerate(source.epoch(epoch)):
            heads.step(values, labels, count=count, rate_factor=config.rate_factor(epoch * steps + index, steps))
    for g, rate in enumerate(config.learning_rates):
        linear, norm = trained_alone(config, train, rate)
        rows = slice(10 * g, 10 * g + 10)
        assert torch.allclose(heads.parameters["weight"][rows], linear.weight, atol=1e-5)
        assert torch.allclose(heads.statistics["mean"][rows], norm.running_mean, atol=1e-5)
        assert torch.allclose(heads.statistics["variance"][rows], norm.running_var, rtol=1e-4)


def test_the_published_protocols_have_their_published_numbers():
    moco, byol = moco_protocol(), byol_protocol()
    assert (moco.learning_rates, moco.epochs, moco.milestones, moco.gamma) == ((30.0,), 100, (60, 80), 0.1)
    assert (moco.weight_decay, moco.momentum, moco.batch_norm, moco.augment) == (0.0, 0.9, False, True)
    assert (byol.learning_rates, byol.epochs, byol.schedule, byol.batch_norm) == ((0.2,), 80, "cosine", True)
    assert byol_protocol(batch_norm=False).batch_norm is False
    assert "the 32 images of each GPU by themselves and drops the last" in " ".join(
        (byol_protocol.__doc__ or "").split()
    )  # ours does neither
    assert [moco.rate_factor(epoch * 10, 10) for epoch in (0, 59, 60, 80)] == pytest.approx([1, 1, 0.1, 0.01])
    assert [byol.rate_factor(step, 10) for step in (0, 400, 800)] == pytest.approx([1, 0.5, 0])


def test_a_head_that_diverges_harms_no_other_and_is_named(digit_features):
    train, test = digit_features
    config = moco_protocol(augment=False, learning_rates=(0.1, 1e38), epochs=2)
    both, alone = linear_probe(train, test, config), linear_probe(train, test, replace(config, learning_rates=(0.1,)))
    assert [head.diverged for head in both.heads] == [False, True]
    assert both.heads[0].last == pytest.approx(alone.heads[0].last, abs=0.12)
    assert both.heads[1].last[1] == 0.0
    assert both.chosen == 0


def test_the_result_is_the_same_bit_for_bit_the_second_time(digit_features):
    config = moco_protocol(augment=False, learning_rates=(0.1, 1.0), epochs=3)
    assert linear_probe(*digit_features, config) == linear_probe(*digit_features, config)
    other = linear_probe(*digit_features, replace(config, seed=1))
    assert other.heads != linear_probe(*digit_features, config).heads


def test_best_is_the_best_evaluated_epoch_and_last_the_last(digit_features):
    config = moco_protocol(augment=False, learning_rates=(30.0,), epochs=6, milestones=())
    result = linear_probe(*digit_features, config)
    source = CachedFeatures(digit_features[0], config)
    cpu = torch.device("cpu")
    probe = SgdProbe(source, {"test": digit_features[1]}, (1, 5), config, num_classes=10, device=cpu)
    train_together([probe])
    curve = [float(accuracy[0, 0]) for accuracy in probe.run.accuracies["test"]]
    assert result.last[1] == curve[-1]
    assert result.best[1] == max(curve)
    assert result.heads[0].best_epoch == probe.run.epochs[curve.index(max(curve))]


def test_with_held_out_data_the_choice_does_not_look_at_the_test_data(digit_features):
    train, test = digit_features
    config = fast_protocol(held_out_fraction=0.25, regularisations=(1e-4, 10.0))
    result = linear_probe(train, test, config)
    shuffled = Features(test.values, test.labels[torch.randperm(len(test), generator=torch.Generator().manual_seed(0))])
    assert result.selected_on == "held-out"
    assert linear_probe(train, shuffled, config).chosen == result.chosen == 0
    assert linear_probe(train, test, replace(config, held_out_fraction=0.0)).selected_on == "test"
    assert linear_probe(train, test, fast_protocol(regularisations=(1e-3,))).selected_on == "single"


def test_the_fast_protocol_does_not_choose_its_penalty_on_test_labels(digit_features):
    train, test = digit_features
    config = fast_protocol()
    result = linear_probe(train, test, config)
    wrong = Features(test.values, (test.labels + 1) % 10, test.classes)
    assert (config.held_out_fraction, result.selected_on) == (0.1, "held-out")
    assert linear_probe(train, wrong, config).chosen == result.chosen
    assert {entry["selected_on"] for entry in result.entries("teacher")} == {"held-out"}


@pytest.mark.parametrize("solver", ["lbfgs", "ridge"])
def test_the_penalty_chosen_on_held_out_images_is_fitted_again_to_all_of_them(solver, digit_features):
    train, test = digit_features
    result = linear_probe(train, test, fast_protocol(solver=solver))
    chosen = result.config.regularisations[result.chosen]
    alone = linear_probe(train, test, fast_protocol(solver=solver, regularisations=(chosen,)))
    assert result.num_train == alone.num_train == len(train)
    assert torch.equal(result.classifier.weight, alone.classifier.weight)
    assert (result.last, alone.selected_on) == (alone.last, "single")


def test_an_exact_solver_reports_no_best_epoch(digit_features):
    for config, expected in ((fast_protocol(), {"last"}), (moco_protocol(augment=False, epochs=1), {"last", "best"})):
        entries = linear_probe(*digit_features, config).entries("teacher")
        assert {entry["which"] for entry in entries} == expected


def test_a_probe_that_was_killed_ends_as_one_that_was_not(tmp_path, digit_features, monkeypatch):
    config = byol_protocol(augment=False, learning_rates=(0.05, 0.2), epochs=6, evaluate_every_epochs=2)
    whole = linear_probe(*digit_features, config)
    original, calls = ParallelHeads.step, []

    def dies(self, *arguments, **keywords):
        calls.append(1)
        if len(calls) == 4 * 4 + 2:  # four steps an epoch: in the fifth epoch, after the second evaluation
            raise KeyboardInterrupt
        original(self, *arguments, **keywords)

    monkeypatch.setattr(ParallelHeads, "step", dies)
    with pytest.raises(KeyboardInterrupt):
        linear_probe(*digit_features, config, state_file=tmp_path / "probe.pt")
    resumed = linear_probe(*digit_features, config, state_file=tmp_path / "probe.pt")
    assert resumed == whole
    assert len(calls) == 18 + 8  # two epochs are repeated, not six
    with pytest.raises(StateError, match="delete it"):
        linear_probe(*digit_features, replace(config, seed=3), state_file=tmp_path / "probe.pt")
    train, test = (Features(f.values.flip(1), f.labels, f.classes) for f in digit_features)  # of another backbone
    with pytest.raises(StateError, match="delete it"):
        linear_probe(train, test, config, state_file=tmp_path / "probe.pt")
    train, test = digit_features
    others = (Features(train.values.flip(0), train.labels), Features(train.values, train.labels.flip(0)))
    for other in others:  # as many training images, and the same test images
        with pytest.raises(StateError, match="delete it"):
            linear_probe(other, test, config, state_file=tmp_path / "probe.pt")


def test_a_state_file_of_other_images_of_equal_labels_is_refused_by_the_augmented_probe(tmp_path, digit_images):
    config = byol_protocol(learning_rates=(0.1,), epochs=1, evaluate_every_epochs=1)
    train, test = (copy.copy(images) for images in digit_images)
    probe = partial(linear_probe, config=config, backbone=nn.Flatten(), state_file=tmp_path / "probe.pt")
    first = probe(train, test)
    assert probe(train, test) == first
    train.images = train.images.flip(-1)
    with pytest.raises(StateError, match="delete it"):
        probe(train, test)


def test_the_augmented_probe_sees_fresh_crops_and_leaves_the_backbone_alone(digit_images, small_network):
    network = small_network(0)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    config = byol_protocol(learning_rates=(0.1,), epochs=2, evaluate_every_epochs=1)
    result = linear_probe(*digit_images, config, backbone=network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training
    assert linear_probe(*digit_images, config, backbone=network) == result
    plain = linear_probe(*digit_images, replace(config, augment=False), backbone=network)
    assert plain.heads != result.heads
    assert {entry["cropped_from"] for entry in result.entries("teacher")} == {"tensors of side 8"}
    assert "cropped_from" not in plain.entries("teacher")[0]
    assert result.last[1] > 15.0  # chance is 10


class Counted(torch.utils.data.Dataset):
    """Images that count how often one is read."""

    def __init__(self, images):
        self.images, self.targets, self.classes, self.num_reads = images, images.targets, images.classes, 0

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        self.num_reads += 1
        return self.images[index]


def test_backbones_probed_together_get_what_they_get_alone_and_each_crop_is_read_once(digit_images, small_network):
    train, test = digit_images
    backbones = {"teacher": small_network(0), "student": small_network(1), "untrained": nn.Flatten()}
    config = byol_protocol(learning_rates=(0.1, 0.3), epochs=3, evaluate_every_epochs=2)
    counted = Counted(train)
    together = linear_probes(counted, test, config, backbones=backbones)
    assert list(together) == list(backbones)
    assert counted.num_reads == 3 * len(train) + 2 * len(backbones), "epochs, and a look at the first image for each"
    for name, backbone in backbones.items():
        alone = linear_probe(train, test, config, backbone=backbone)
        assert together[name] == alone
        weights = alone.classifier.state_dict()
        assert all(torch.equal(value, weights[key]) for key, value in together[name].classifier.state_dict().items())


def test_backbones_probed_together_resume_wherever_each_of_them_was(tmp_path, digit_images, small_network, monkeypatch):
    backbones = {"teacher": small_network(0), "student": small_network(1)}
    files = {name: tmp_path / f"{name}.pt" for name in backbones}
    config = byol_protocol(learning_rates=(0.1,), epochs=3, evaluate_every_epochs=1)
    whole = linear_probes(*digit_images, config, backbones=backbones)
    original, calls = ParallelHeads.step, []

    def dies(self, *arguments, **keywords):
        calls.append(1)
        if len(calls) == 2 * 4 + 2:  # four steps an epoch: in the third epoch
            raise KeyboardInterrupt
        original(self, *arguments, **keywords)

    monkeypatch.setattr(ParallelHeads, "step", dies)
    with pytest.raises(KeyboardInterrupt):
        linear_probe(*digit_images, config, backbone=backbones["student"], state_file=files["student"])
    assert linear_probes(*digit_images, config, backbones=backbones, state_files=files) == whole
    assert len(calls) == 10 + 2 * 4 + 4 + 4  # the teacher's first two epochs, and the last of both
    assert linear_probes(*digit_images, config, backbones=backbones, state_files=files) == whole
    assert len(calls) == 26


def test_backbones_are_probed_one_after_the_other_where_features_are_cached(digit_images, small_network):
    backbones = {"teacher": small_network(0), "student": small_network(1)}
    protocol = fast_protocol(regularisations=(1e-3,))
    together = linear_probes(*digit_images, protocol, backbones=backbones)
    assert together == {name: linear_probe(*digit_images, protocol, backbone=one) for name, one in backbones.items()}


def test_the_augmented_probe_takes_images_from_folders(tmp_path):
    import numpy as np
    from PIL import Image

    from sts_eval import image_folder

    for split in ("train", "val"):
        for c, colour in enumerate(("red", "blue")):
            (tmp_path / split / colour).mkdir(parents=True)
            for i in range(6):
                pixels = np.random.default_rng(i).integers(0, 60, (24, 32, 3), dtype=np.uint8)
                pixels[..., 2 * c] += 150
                Image.fromarray(pixels).save(tmp_path / split / colour / f"{i}.png")
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    train, test = image_folder(tmp_path / "train", image_size=None), image_folder(tmp_path / "val", image_size=16)
    config = moco_protocol(learning_rates=(1.0,), epochs=3, batch_size=4)
    result = linear_probe(train, test, config, backbone=backbone)
    assert (result.last, result.cropped_from) == ({1: 100.0}, "whole images")


def test_entries_name_network_metric_and_which(digit_features):
    result = linear_probe(*digit_features, fast_protocol(regularisations=(1e-3,)))
    entries = result.entries("teacher")
    assert [(e["metric"], e["which"]) for e in entries] == [("top1", "last"), ("top5", "last")]
    assert {e["network"] for e in entries} == {"teacher"}
    assert entries[0]["protocol"] == asdict(result.config)
    assert entries[0]["regularisation"] == 1e-3


@pytest.mark.parametrize(
    "config",
    [byol_protocol(augment=False, epochs=3), moco_protocol(augment=False, epochs=2), fast_protocol()],
    ids=["byol", "moco", "fast"],
)
def test_the_classifier_on_top_of_the_backbone_reaches_the_reported_accuracy(config, digit_images, small_network):
    network = small_network(0)
    result = linear_probe(*digit_images, config, backbone=network)
    whole = result.with_backbone(network)
    assert classification_accuracy(whole, digit_images[1]) == pytest.approx(result.last, abs=0.12)
    assert not any(parameter.requires_grad for parameter in result.classifier.parameters())


def test_a_class_without_images_is_named(digit_features):
    train, test = digit_features
    keep = train.labels != 3
    lacking = Features(train.values[keep], train.labels[keep], train.classes)
    with pytest.raises(DataError, match="training data, but it has none of 3"):
        linear_probe(lacking, test, fast_protocol())
    with pytest.raises(DataError, match="test data"):
        linear_probe(train, Features(test.values[test.labels < 9], test.labels[test.labels < 9], test.classes))
    config = fast_protocol(regularisations=(1e-3,), allow_missing_classes=True)
    assert linear_probe(lacking, test, config).last[1] > 80.0


def test_the_augmented_probe_checks_labels_that_the_dataset_does_not_list(small_network):
    labels = torch.arange(24) % 3
    images = torch.randn(24, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    whole, lacking = TensorDataset(images, labels), TensorDataset(images[labels < 2], labels[labels < 2])
    config, network = moco_protocol(learning_rates=(0.1,), epochs=1, batch_size=7), small_network(0)
    with pytest.raises(DataError, match="training data, but it has none of 2"):
        linear_probe(lacking, whole, config, backbone=network)
    with pytest.raises(DataError, match="test data, but it has none of 2"):
        linear_probe(whole, lacking, config, backbone=network)
    allowed = replace(config, allow_missing_classes=True)
    assert linear_probe(whole, lacking, allowed, backbone=network).classifier.out_features == 3
    negative = TensorDataset(images, labels - 1)
    with pytest.raises(DataError, match=r"training labels must lie in 0..2, got -1..1"):
        linear_probe(negative, whole, config, backbone=network)


def test_features_of_half_precision_are_taken_as_float32(digit_features):
    halves = [Features(f.values.half(), f.labels.int(), f.classes) for f in digit_features]
    rounded = [Features(f.values.half().float(), f.labels, f.classes) for f in digit_features]
    for config in (moco_protocol(augment=False, epochs=1), fast_protocol(solver="ridge")):
        assert linear_probe(*halves, config) == linear_probe(*rounded, config)
    assert Features(rounded[0].values, rounded[0].labels).values is rounded[0].values  # not copied


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_features_that_are_not_finite_are_refused_before_any_use(bad):
    values = torch.zeros(4, 3)
    values[2, 1] = bad
    with pytest.raises(StateError, match="features must be finite"):
        Features(values, torch.arange(4))


def test_features_that_are_empty_or_labelled_by_fractions_are_refused():
    with pytest.raises(ConfigError, match="not empty"):
        Features(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(ConfigError, match="whole numbers"):
        Features(torch.zeros(2, 3), torch.zeros(2))


@pytest.mark.parametrize("fraction", [0.9999, 0.0001])
def test_a_held_out_part_of_all_or_none_of_the_data_is_refused(fraction, digit_features):
    with pytest.raises(ConfigError, match="some of the 899 training images"):
        linear_probe(*digit_features, fast_protocol(held_out_fraction=fraction))


def test_a_damaged_state_file_is_named(tmp_path, digit_features):
    config, file = moco_protocol(augment=False, epochs=1), tmp_path / "probe.pt"
    linear_probe(*digit_features, config, state_file=file)
    whole = file.read_bytes()
    for damaged in (b"", b"garbage", whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(StateError, match=r"probe\.pt is damaged .*: delete it"):
            linear_probe(*digit_features, config, state_file=file)
    torch.save({"weights": torch.zeros(1)}, file)
    with pytest.raises(StateError, match=r"probe\.pt is damaged or of another kind \(KeyError\): delete it"):
        linear_probe(*digit_features, config, state_file=file)


def test_splits_that_number_their_classes_differently_are_refused(digit_features):
    train, test = digit_features
    shifted = Features(test.values, test.labels, (*train.classes[1:], "extra"))
    with pytest.raises(DataError, match="same classes in the same order, but 0, extra occur in one split only"):
        linear_probe(train, shifted, fast_protocol())


@pytest.mark.parametrize(
    "values",
    [
        {"learning_rates": ()},
        {"learning_rates": (float("nan"),)},
        {"solver": "adam"},
        {"solver": "ridge", "augment": True},
        {"epochs": 0},
        {"held_out_fraction": 1.0},
        {"schedule": "linear"},
        {"epochs": float("inf")},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 0.5},
        {"weight_decay": float("nan")},
        {"weight_decay": -1e-4},
        {"gamma": -5.0},
        {"gamma": float("inf")},
        {"milestones": (-1,)},
    ],
)
def test_impossible_settings_are_refused(values):
    with pytest.raises(ConfigError):
        LinearProbeConfig(**values)


def test_augmentation_of_features_and_datasets_without_a_backbone_are_refused(digit_features, digit_images):
    with pytest.raises(ConfigError, match="augment=False"):
        linear_probe(*digit_features, moco_protocol())
    with pytest.raises(ConfigError, match="needs a backbone"):
        linear_probe(*digit_images, moco_protocol(augment=False))
