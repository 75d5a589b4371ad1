"""Batch norm over workers whose images differ in size: every worker counts the same, as in the recipe."""

import sys

import pytest
import torch
from torch import nn

from sts_eval.detection.backends.batch_norm import CrossRankBatchNorm2d
from sts_eval.detection.backends.detectron2 import detectron2_is_installed
from tests import processes

SIZES = ((2, 3, 4, 6), (1, 3, 9, 5))
WORKER = """
import sys, torch, torch.distributed as dist
from importlib import import_module
folder, rank, module, name = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
given = torch.load(f"{folder}/given.pt", weights_only=True)
layer = getattr(import_module(module), name)(3)
layer.load_state_dict(given["layer"])
x = given["inputs"][rank].requires_grad_()
y = layer(x)
(y * given["weights"][rank]).sum().backward()
found = {"y": y.detach(), "dx": x.grad, "dweight": layer.weight.grad, "layer": layer.state_dict()}
torch.save(found, f"{folder}/found-{rank}.pt")
dist.destroy_process_group()
"""


needs_detectron2 = pytest.mark.skipif(not detectron2_is_installed(), reason="detectron2 is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer_class",
    [
        ("sts_eval.detection.backends.batch_norm", "CrossRankBatchNorm2d"),
        pytest.param(("detectron2.layers", "NaiveSyncBatchNorm"), marks=needs_detectron2),
    ],
    ids=["ours", "detectron2"],
)
def test_each_worker_has_the_same_weight_in_statistics_and_gradients(tmp_path, layer_class):
    generator = torch.Generator().manual_seed(0)
    inputs, weights = ([torch.randn(size, generator=generator) for size in SIZES] for _ in range(2))
    layer = nn.BatchNorm2d(3)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, generator=generator))
        layer.bias.copy_(torch.randn(3, generator=generator))
    torch.save({"inputs": inputs, "weights": weights, "layer": layer.state_dict()}, tmp_path / "given.pt")
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    workers = [processes.Process([*command, rank, *layer_class]) for rank in range(2)]

    # The slow, obvious way, in one process: the loss is the sum over the workers.
    for x in inputs:
        x.requires_grad_()
    mean = torch.stack([x.mean((0, 2, 3)) for x in inputs]).mean(0)
    variance = torch.stack([(x * x).mean((0, 2, 3)) for x in inputs]).mean(0) - mean**2
    scale = layer.weight / (variance + layer.eps).sqrt()
    expected = [(x - mean[:, None, None]) * scale[:, None, None] + layer.bias[:, None, None] for x in inputs]
    sum((y * w).sum() for y, w in zip(expected, weights, strict=True)).backward()
    count = sum(x.numel() // 3 for x in inputs)
    unbiased = count / (count - 1) if "sts_eval" in layer_class[0] else 1.0  # with several workers theirs is biased
    running = 0.9 * torch.ones(3) + 0.1 * variance.detach() * unbiased

    processes.finish_all(workers)
    assert [worker.returncode for worker in workers] == [0, 0]
    found = [torch.load(tmp_path / f"found-{rank}.pt", weights_only=True) for rank in range(2)]
    for rank, x in enumerate(inputs):
        torch.testing.assert_close(found[rank]["y"], expected[rank].detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[rank]["dx"], x.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[rank]["layer"]["running_mean"], 0.1 * mean.detach())
        torch.testing.assert_close(found[rank]["layer"]["running_var"], running)
    torch.testing.assert_close(found[0]["dweight"] + found[1]["dweight"], layer.weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_one_worker_has_torchs_batch_norm_to_the_bit(training):
    x = torch.randn(SIZES[0], generator=torch.Generator().manual_seed(0))
    ours, theirs = CrossRankBatchNorm2d(3).train(training), nn.BatchNorm2d(3).train(training)
    assert torch.equal(ours(x), theirs(x))
    assert all(torch.equal(a, b) for a, b in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True))
