"""A machine that is about to be taken away: a checkpoint ahead of time, in process, with Ray's notice made up."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest

from sts_methods import CheckpointStore
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.launch.job import jobs_of, write_config
from sts_pipelines.launch.runtime import PreemptionNotice, StorageCopy, build_runtime
from sts_pipelines.launch.worker import train_job

Tiny = Callable[..., PipelineConfig]


class Looking(PreemptionNotice):
    """Writes down which checkpoints there are whenever metrics are reported."""

    seen: ClassVar[list[list[int]]] = []

    def report(self, metrics: Mapping[str, float], saved: Callable[[], None] | None) -> None:
        super().report(metrics, saved)
        self.seen.append(CheckpointStore(self.folder / "checkpoints").steps())


def test_a_notice_of_preemption_saves_one_checkpoint_at_once(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.train

    asked: list[int] = []

    def known_from_the_third_step_on() -> object | None:
        asked.append(len(asked) + 1)
        return object() if len(asked) >= 3 else None

    monkeypatch.setattr(ray.train, "get_preemption_info", known_from_the_third_step_on)
    (job,) = jobs_of(tiny("byol-digits-sts", steps=6, checkpoint_every_steps=100, log_every_steps=1))
    write_config(job)
    storage = StorageCopy(None)
    train_job(job, build_runtime(job, storage, also=[Looking(job.folder)], progress=False), storage)
    assert Looking.seen == [[], [], [], [3], [3], [3]]
    assert asked == [1, 2, 3]  # nobody asks again
