"""The training loop of both backends: SGD over samples, checkpoints, metrics, precise batch norm.

Weights after iteration k are a function of the config, the backbone, the number of workers and k. On CPUs that holds to
the bit, also across interruptions; on GPUs up to the order in which RoIAlign's gradient adds.
"""

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sts_core import ConfigError, StateError
from sts_core.distributed import barrier, broadcast_object, is_parallel, rank, sum_over_ranks_, world_size
from sts_core.fields import outcome_relevant
from sts_core.files import write_atomically
from sts_eval.detection.backends.interface import Detector
from sts_eval.detection.checkpoints import CheckpointFolder, DetectionCheckpoint
from sts_eval.detection.config import DetectionConfig
from sts_eval.detection.errors import DivergenceError
from sts_eval.detection.precise_bn import update_statistics_
from sts_eval.detection.samples import Sample, TrainingVisits
from sts_eval.detection.schedule import build_optimizer, learning_rate
from sts_eval.detection.voc import VocImage

Metrics = Mapping[str, float]


class DetectionTraining:
    """Trains `detector` in place; `run` resumes from the newest checkpoint in `folder`, if there is one."""

    def __init__(
        self,
        detector: Detector,
        visits: TrainingVisits,
        config: DetectionConfig,
        *,
        folder: Path | None = None,
        on_metrics: Callable[[Metrics], None] | None = None,
    ) -> None:
        if config.batch_size % world_size():
            raise ConfigError(
                f"the number of workers must divide batch_size={config.batch_size}, got {world_size()}: "
                "use another number of workers or another batch_size"
            )
        self.detector, self.visits, self.config = detector, visits, config
        self.on_metrics = on_metrics
        self.folder = folder
        self.checkpoints = CheckpointFolder(folder / "checkpoints", keep=config.keep_checkpoints) if folder else None
        self.fingerprint = fingerprint(detector, config, visits.images)
        self.optimizer = build_optimizer(detector, config)
        self.network: nn.Module = _distribute(detector) if is_parallel() else detector

    def run(self, stop: int | None = None) -> int:
        """Train up to iteration `stop` (all of them by default) and return the iteration that training began with."""
        stop = self.config.iterations if stop is None else stop
        start = self._resume()
        self.network.train()
        began = time.perf_counter()
        for iteration, batch in enumerate(self._batches(start, stop), start=start):
            losses = self._step(iteration, batch)
            done = iteration + 1
            if done % self.config.log_every == 0 or done == stop:
                self._log(done, losses, (time.perf_counter() - began) / (done - start))
            if done % self.config.checkpoint_every == 0 or done == stop:
                self._save(done)
        return start

    def finish(self) -> int:
        """Average the batch-norm statistics over the batches that follow the last iteration; return their number."""
        first = self.config.iterations
        return update_statistics_(self.detector, self._batches(first, first + self.config.precise_bn_iterations))

    def _batches(self, start: int, stop: int) -> Iterator[list[Sample]]:
        return self.visits.batches(start, stop) if start < stop else iter(())

    def _step(self, iteration: int, batch: list[Sample]) -> dict[str, float]:
        rate = learning_rate(iteration, self.config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        losses: dict[str, torch.Tensor] = self.network(batch)
        total = torch.stack(list(losses.values())).sum()
        self.optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        means = _mean_over_ranks(losses)
        if not all(value == value and abs(value) != float("inf") for value in means.values()):
            raise DivergenceError(f"losses must be finite, got {means} in iteration {iteration}: lower learning_rate")
        self.optimizer.step()
        return {**means, "loss": sum(means.values()), "learning_rate": rate}

    def _log(self, iteration: int, losses: Mapping[str, float], seconds: float) -> None:
        metrics = {"iteration": iteration, **losses, "seconds_per_iteration": seconds}
        if self.folder is not None and rank() == 0:
            with (self.folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(metrics) + "\n")
        if self.on_metrics is not None:
            self.on_metrics(metrics)

    def _save(self, iteration: int) -> None:
        if self.checkpoints is None:
            return
        if rank() == 0:
            model, optimizer = self.detector.state_dict(), self.optimizer.state_dict()
            self.checkpoints.save(DetectionCheckpoint(iteration, self.fingerprint, model, optimizer))
        barrier()  # nobody runs ahead of a checkpoint that is not there yet

    def _resume(self) -> int:
        if self.checkpoints is None:
            return 0
        checkpoint = self._newest(self.checkpoints)
        iteration = 0 if checkpoint is None else checkpoint.iteration
        if checkpoint is not None:
            self.detector.load_state_dict(checkpoint.model)
            self.optimizer.load_state_dict(checkpoint.optimizer)
        if self.folder is not None and rank() == 0:
            _forget_metrics_after(self.folder / "metrics.jsonl", iteration)
        return iteration

    def _newest(self, checkpoints: CheckpointFolder) -> DetectionCheckpoint | None:
        """What rank 0 has, who tells the others: they may see another folder, or an older state of the same."""
        found: DetectionCheckpoint | StateError | None = None
        if rank() == 0:
            try:
                found = checkpoints.newest(self.fingerprint)
            except StateError as error:
                found = error
        found = broadcast_object(found)
        if isinstance(found, StateError):
            raise found
        return found


def fingerprint(detector: Detector, config: DetectionConfig, images: Sequence[VocImage]) -> str:
    """A hash of all that decides the weights: settings, annotations and the weights that training begins with."""
    digest = hashlib.sha256(json.dumps(outcome_relevant(config), sort_keys=True).encode())
    for image in images:
        objects = [image.boxes.tolist(), image.classes.tolist()]
        digest.update(json.dumps([image.image_id, image.height, image.width, *objects]).encode())
    for name, tensor in sorted(detector.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _distribute(detector: Detector) -> nn.Module:
    """Average gradients over workers; buffers are not sent, since cross-rank batch norm keeps them equal."""
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters  # newer torch
    settings: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    return DistributedDataParallel(detector, **settings)


def _mean_over_ranks(losses: Mapping[str, torch.Tensor]) -> dict[str, float]:
    values = torch.stack([value.detach() for value in losses.values()])
    means = sum_over_ranks_(values) / world_size()
    return dict(zip(losses, means.tolist(), strict=True))


def _forget_metrics_after(path: Path, iteration: int) -> None:
    """Drop the lines of iterations that will be done again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["iteration"] <= iteration]
        write_atomically(path, "".join(kept))
