"""FixMatch draws its labelled images at random, for any number of workers, and no run resumes in another order."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sts_core import temporal_moving_average
from sts_core.errors import StateError
from sts_methods.data.batches import RANDOM_STEPS, build_training_data
from sts_methods.data.config import DataConfig
from sts_methods.data.sampler import StatelessSampler
from sts_methods.methods.fixmatch import FixMatchConfig
from sts_methods.runs.resume import differences
from sts_methods.training.config import TrainingConfig
from sts_methods.training.description import resolved
from sts_methods.training.loop import fit
from sts_methods.training.run import Run
from tests.methods.training import tiny_training as tiny

FIXMATCH = FixMatchConfig(backbone="wrn_10_1", num_classes=10)
CONFIG = TrainingConfig(
    method=FIXMATCH,
    smoothing=temporal_moving_average(0.9),
    data=DataConfig(views="fixmatch", image_size=8, num_labels=40, unlabelled_ratio=1),
    global_batch_size=64,
    steps=1,
)


def class_counts(config: TrainingConfig, folder: Path, *, num_batches: int = 150) -> np.ndarray:
    """Labelled images of each class in the first batches of a run."""
    run = Run(config, tiny.runtime(folder))
    batches = [next(run.batches)[0] for _ in range(num_batches)]
    run.close()
    return np.array([np.bincount(batch.labelled_part()[1].numpy(), minlength=10) for batch in batches])


@pytest.mark.slow
def test_the_classes_of_a_batch_vary_as_in_independent_draws(tmp_path: Path) -> None:
    counts = class_counts(CONFIG, tmp_path / "random")
    assert counts.mean() == pytest.approx(6.4)
    assert counts.std() == pytest.approx(np.sqrt(64 * 0.1 * 0.9), rel=0.06)  # 2.40
    even = replace(CONFIG, method=replace(FIXMATCH, labelled_order="epochs"))
    assert class_counts(even, tmp_path / "epochs").std() < 1.5


def test_a_batch_of_64_holds_as_many_of_40_labels_as_independent_draws() -> None:
    copies = RANDOM_STEPS * 64 // 40
    sampler = StatelessSampler(num_samples=40, batch_size=64, seed=0, stream=1, drop_last=False, copies=copies)
    distinct = np.mean([len(set(sampler.batch(step).indices.tolist())) for step in range(2000)])
    assert distinct == pytest.approx(40 * (1 - (1 - 1 / 40) ** 64), abs=0.2)  # 32.1


def test_two_workers_share_the_labelled_images_of_one() -> None:
    def labels(rank: int, world_size: int) -> list[int]:
        data = build_training_data(
            CONFIG.data, seed=0, global_batch_size=64, rank=rank, world_size=world_size, labelled_order="random"
        )
        (batch,) = next(data.steps(1500))  # in the second list of 1,024 steps
        numbers: list[int] = batch.labelled_part()[1].tolist()
        return numbers

    assert labels(0, 2) + labels(1, 2) == labels(0, 1)


def test_a_run_with_another_order_or_from_before_there_were_two_is_not_continued(tmp_path: Path) -> None:
    fit(replace(CONFIG, method=replace(FIXMATCH, labelled_order="epochs")), tiny.runtime(tmp_path))
    with pytest.raises(StateError, match="labelled_order was 'epochs' and is now 'random'"):
        fit(replace(CONFIG, steps=1), tiny.runtime(tmp_path))
    earlier = resolved(CONFIG)
    del earlier["method"]["labelled_order"]
    assert differences(earlier, resolved(CONFIG), ()) == ["method.labelled_order was None and is now 'random'"]
