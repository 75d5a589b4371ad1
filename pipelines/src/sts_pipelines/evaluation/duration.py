"""How long evaluation will take, by the time of a forward pass."""

import time
from contextlib import nullcontext

import torch
from torch import nn

from sts_pipelines.config.pipeline import PipelineConfig


@torch.no_grad()
def seconds_of_evaluation(pipeline: PipelineConfig, backbone: nn.Module, *, num_train: int, batch_size: int) -> float:
    """What the workers together need to show all images to the networks; classifiers and test images are left out.

    The backbone is timed twice on one batch, and its modes are put back.
    """
    shown = pipeline.evaluation.images_shown(num_train)
    if not shown:
        return 0.0
    modes = [(module, module.training) for module in backbone.modules()]
    side, device = pipeline.training.data.image_size, next(backbone.parameters()).device
    images = torch.zeros(max(batch_size, 2), 3, side, side, device=device)
    backbone.eval()
    compiled = pipeline.training.compile  # evaluation is not; importing the compiler takes seconds
    with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
        for _ in range(2):  # the first one warms up
            started = time.perf_counter()
            float(backbone(images).float().sum())
    seconds = time.perf_counter() - started
    for module, mode in modes:
        module.training = mode
    return shown / len(images) * seconds / max(1, pipeline.cluster.num_workers)
