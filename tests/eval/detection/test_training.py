"""Training is a function of the config and the backbone: interrupted or not, with one worker or two."""

import json
import sys
from dataclasses import asdict, replace

import pytest
import torch
from torch import nn

from sts_core.errors import ConfigError, StateError
from sts_eval.detection import detection_transfer, read_voc_split, training
from sts_eval.detection.backends.choice import build_detector
from sts_eval.detection.backends.resnet import BottleneckResNet
from sts_eval.detection.conversion import load_trunk_, trunk_state
from sts_eval.detection.errors import DivergenceError, VocError
from sts_eval.detection.precise_bn import update_statistics_
from sts_eval.detection.samples import TrainingVisits
from sts_eval.detection.synthetic import NARROW_SHAPE, narrow_config, write_synthetic_voc
from sts_eval.detection.training import DetectionTraining
from sts_eval.detection.voc import VOC_CLASSES
from sts_eval.features.backbone_source import Backbone
from sts_eval.results import check_entry
from tests import processes


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return write_synthetic_voc(tmp_path_factory.mktemp("voc"), splits={"trainval": 4, "test": 4})


def tiny_config(tree, *, iterations=4, **settings):
    """Half the narrow config's size: a third of a second per iteration."""
    small = replace(
        narrow_config(tree), train_sizes=(80, 96), test_size=96, batch_size=2, anchor_sizes=(16.0, 32.0, 64.0)
    )
    defaults = {"precise_bn_iterations": 2, "checkpoint_every": 2, "log_every": 1}
    return replace(small.scaled(iterations), **{**defaults, **settings})


def narrow_backbone(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return BottleneckResNet(NARROW_SHAPE)


def prepare(config, folder=None, backbone=None):
    detector = build_detector(config, NARROW_SHAPE)
    load_trunk_(detector, trunk_state(backbone or narrow_backbone()))
    visits = TrainingVisits(read_voc_split(config.data_root, "voc_2007_trainval").images, config)
    return DetectionTraining(detector, visits, config, folder=folder)


def weights(run):
    return {name: tensor.clone() for name, tensor in run.detector.state_dict().items()}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.slow
def test_a_run_that_was_interrupted_ends_with_the_same_bits(tree, tmp_path):
    config = tiny_config(tree)
    whole = prepare(config, tmp_path / "whole")
    whole.run()
    prepare(config, tmp_path / "parts").run(stop=3)
    rest = prepare(config, tmp_path / "parts")
    assert rest.run() == 3
    assert_equal(weights(rest), weights(whole))
    whole.finish()
    rest.finish()
    assert_equal(weights(rest), weights(whole))


@pytest.mark.slow
def test_a_torn_checkpoint_is_skipped_for_the_one_before_and_the_metrics_hold_each_iteration_once(tree, tmp_path):
    config = tiny_config(tree)
    first = prepare(config, tmp_path)
    first.run()
    newest = tmp_path / "checkpoints" / "iteration-00000004.pt"
    newest.write_bytes(newest.read_bytes()[:5000])
    again = prepare(config, tmp_path)
    with pytest.warns(UserWarning, match=r"iteration-00000004\.pt cannot be read"):
        assert again.run() == 2
    assert_equal(weights(again), weights(first))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]


@pytest.mark.slow
def test_only_the_newest_checkpoints_stay(tree, tmp_path):
    prepare(tiny_config(tree, keep_checkpoints=1), tmp_path).run()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["iteration-00000004.pt"]


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused(tree, tmp_path):
    prepare(tiny_config(tree), tmp_path).run(stop=1)
    with pytest.raises(StateError, match="checkpoints of other settings, other images or another backbone"):
        prepare(tiny_config(tree, learning_rate=0.01), tmp_path).run()
    with pytest.raises(StateError, match="checkpoints of other settings, other images or another backbone"):
        prepare(tiny_config(tree), tmp_path, narrow_backbone(seed=1)).run()
    for change in ({"seed": 9}, {"classes": VOC_CLASSES[1:4]}):  # other images, and other objects in the same images
        other = write_synthetic_voc(tmp_path / "other", splits={"trainval": 4, "test": 4}, **change)
        with pytest.raises(StateError, match="checkpoints of other settings, other images or another backbone"):
            prepare(tiny_config(other), tmp_path).run()
    assert prepare(tiny_config(tree, log_every=3), tmp_path).run(stop=1) == 1


def test_a_loss_that_is_not_finite_stops_training(tree):
    run = prepare(tiny_config(tree))
    with torch.no_grad():
        run.detector.roi_heads.box_predictor.cls_score.bias.fill_(float("nan"))
    with pytest.raises(DivergenceError, match=r"losses must be finite, got .*nan.* in iteration 0"):
        run.run()


def test_workers_that_do_not_divide_the_batch_are_refused(tree, monkeypatch):
    monkeypatch.setattr(training, "world_size", lambda: 3)
    with pytest.raises(ConfigError, match="must divide batch_size=2, got 3"):
        prepare(tiny_config(tree))


def test_norm_layers_have_no_weight_decay_and_every_parameter_is_trained(tree):
    run = prepare(tiny_config(tree))
    rest, norm = run.optimizer.param_groups
    assert (rest["weight_decay"], norm["weight_decay"]) == (1e-4, 0.0)
    assert len(rest["params"]) + len(norm["params"]) == len(list(run.detector.parameters()))
    assert len(norm["params"]) == 2 * sum(isinstance(module, nn.BatchNorm2d) for module in run.detector.modules())
    run.run(stop=1)
    assert [name for name, parameter in run.detector.named_parameters() if not parameter.grad.any()] == []


def test_precise_statistics_are_those_of_all_values_together(tree):
    run = prepare(tiny_config(tree))
    batches = list(run.visits.batches(4, 6))
    layer = run.detector.backbone.bn1
    inputs = []
    hook = layer.register_forward_pre_hook(lambda module, values: inputs.append(values[0].detach()))
    assert update_statistics_(run.detector, batches) == 2
    hook.remove()
    values = torch.cat([value.transpose(0, 1).flatten(1) for value in inputs], dim=1).double()
    assert torch.allclose(layer.running_mean.double(), values.mean(dim=1), atol=1e-6)
    assert torch.allclose(layer.running_var.double(), values.var(dim=1, correction=0), rtol=1e-4)
    assert layer.momentum == 0.1


def test_without_batches_the_statistics_stay(tree):
    run = prepare(tiny_config(tree))
    before = weights(run)
    assert update_statistics_(run.detector, []) == 0
    assert_equal(weights(run), before)


WORKER = """
import sys, torch, torch.distributed as dist
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
from sts_core import StateError
from sts_eval.detection import DetectionConfig, detection_transfer
from sts_eval.detection.backends.resnet import BottleneckResNet
from sts_eval.detection.synthetic import NARROW_SHAPE
backbone = BottleneckResNet(NARROW_SHAPE)
start = torch.load(f"{folder}/start.pt", weights_only=True)
backbone.load_state_dict(start["backbone"])
mine = f"{folder}/machine-{rank}"  # which the other does not see
result = detection_transfer(backbone, DetectionConfig(**start["config"]), folder=f"{mine}/two")
torch.save({"workers": result.num_workers, "ap": result.scores.ap}, f"{folder}/end-{rank}.pt")

from dataclasses import replace
from pathlib import Path
from tests.eval.detection.test_training import assert_equal, prepare, weights
config = replace(DetectionConfig(**start["config"]), iterations=2, precise_bn_iterations=0)
whole = prepare(config)
whole.run()
prepare(config, Path(mine) / "parts").run(stop=1)
rest = prepare(config, Path(mine) / "parts")
assert rest.run() == 1
assert_equal(weights(rest), weights(whole))
assert (Path(mine) / "parts" / "checkpoints").exists() == (rank == 0)
try:
    prepare(replace(config, learning_rate=0.01), Path(mine) / "parts").run()
except StateError as error:
    torch.save(str(error), f"{folder}/refused-{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_workers_train_the_weights_of_one_resume_to_the_bit_and_agree_on_the_result(tmp_path):
    # Same-sized images: otherwise padding, and with it the statistics, depend on who shares a worker.
    root = write_synthetic_voc(tmp_path / "voc", splits={"trainval": 8, "test": 3})
    names = [f"trainval_{index:06d}\n" for index in range(0, 8, 2)]
    (root / "VOC2007" / "ImageSets" / "Main" / "trainval.txt").write_text("".join(names))
    # One iteration: from the second on, rounding decides which of two proposals survives, and training is chaotic.
    config = tiny_config(root, iterations=1, train_sizes=(80,), precise_bn_iterations=1)
    backbone = narrow_backbone()
    torch.save({"backbone": backbone.state_dict(), "config": asdict(config)}, tmp_path / "start.pt")
    arguments = [[str(tmp_path), str(rank)] for rank in range(2)]
    workers = [processes.Process([sys.executable, "-c", WORKER, *argument]) for argument in arguments]
    one = prepare(config, tmp_path / "one")
    start = weights(one)
    one.run()
    processes.finish_all(workers)
    assert [worker.returncode for worker in workers] == [0, 0]
    assert all((tmp_path / f"refused-{rank}.pt").exists() for rank in range(2))
    ends = [torch.load(tmp_path / f"end-{rank}.pt", weights_only=True) for rank in range(2)]
    assert ends[0] == ends[1]
    assert ends[0]["workers"] == 2
    alone, together = (
        torch.load(tmp_path / name / "checkpoints" / "iteration-00000001.pt", weights_only=True)["model"]
        for name in ("one", "machine-0/two")
    )
    for kind in ("weight", "bias", "running_mean", "running_var"):
        chosen = [name for name in alone if name.endswith(kind)]
        moved = max(float((alone[name] - start[name]).abs().max()) for name in chosen)
        apart = max(float((alone[name] - together[name]).abs().max()) for name in chosen)
        assert apart < 1e-2 * moved, kind


@pytest.mark.slow
def test_twenty_iterations_lower_the_loss_and_the_result_names_its_conditions(tree, tmp_path):
    config = tiny_config(tree, iterations=20, train_sizes=(96,), horizontal_flip=False)
    metrics = []
    manifest = {"backbone": "narrow", "method": "byol", "network": "teacher", "step": 7}
    source = Backbone(narrow_backbone(), manifest)
    result = detection_transfer(source, config, folder=tmp_path, on_metrics=metrics.append)
    losses = [entry["loss"] for entry in metrics]
    assert len(losses) == 20
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert result.backend == "torchvision"
    assert {"torch", "torchvision", "python"} <= result.versions.keys()
    assert result.dataset == {"voc_2007_trainval": 4, "voc_2007_test": 4}
    assert result.schedule.startswith("20 iterations of 2 images, learning rate 0.02")
    assert result.initialisation.startswith("narrow, method byol, network teacher, step 7, sha256 ")
    assert result.matched_tensors == 318
    assert result.feature_difference == 0.0
    assert not result.comparable_with_paper
    assert "the backend is torchvision, the paper's is detectron2" in result.not_comparable
    assert "voc_2007_test has 4 images, which is not the published split" in result.not_comparable
    assert any(reason.startswith("iterations is 20, in the protocol 24000") for reason in result.not_comparable)
    saved = json.loads((tmp_path / "result.json").read_text())
    assert saved["scores"]["ap50"] == result.scores.ap50
    assert saved["comparable_with_paper"] is False
    entries = result.entries(network="teacher")
    assert {entry["metric"]: entry["value"] for entry in entries} == {
        "AP": result.scores.ap,
        "AP50": result.scores.ap50,
        "AP75": result.scores.ap75,
    }
    for entry in entries:
        check_entry(entry)
        assert entry["backend"] == "torchvision"


def test_a_tree_without_annotations_stops_before_anything_is_written(tmp_path):
    root = write_synthetic_voc(tmp_path / "voc", splits={"trainval": 2, "test": 2})
    (root / "VOC2007" / "Annotations" / "test_000001.xml").unlink()
    with pytest.raises(VocError, match=r"got none for 1 of 2 \(first test_000001.xml\)"):
        detection_transfer(narrow_backbone(), tiny_config(root), folder=tmp_path / "run")
    with pytest.raises(VocError, match="must hold VOC2012"):
        detection_transfer(narrow_backbone(), tiny_config(root, test_split="voc_2012_val"), folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_some_iterations_overfit_four_images(tree):
    # Small images and few proposals: a quarter of a second per iteration on one core.
    sizes = {"train_sizes": (96,), "test_size": 96, "anchor_sizes": (32.0, 64.0), "horizontal_flip": False}
    stages = ("rpn_train_pre_nms", "rpn_train_post_nms", "rpn_test_pre_nms", "rpn_test_post_nms")
    few = {"roi_samples": 8, "rpn_samples": 32, "precise_bn_iterations": 4, **dict.fromkeys(stages, 32)}

    def scores(iterations):
        config = replace(narrow_config(tree, iterations=iterations), **sizes, **few)
        found = detection_transfer(narrow_backbone(), config).scores
        present = [values for name, values in found.per_class.items() if name not in found.absent_classes]
        assert len(present) == 3
        return [sum(values) / len(present) for values in zip(*present, strict=True)]

    ap, ap50, _ = scores(60)
    assert ap50 > 70
    assert ap > 20
    assert scores(1)[1] < 30
