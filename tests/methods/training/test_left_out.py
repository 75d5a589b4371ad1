"""A batch whose loss or gradients are not finite changes nothing, and the next one finds everything as it was."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sts_core import spatial_ensemble
from sts_methods.batch import Batch
from sts_methods.training.learner import Learner
from sts_methods.training.optimizers import OptimizerConfig
from tests.methods.training import rank_cases as cases
from tests.methods.training.tiny_training import assert_same_bits

NAN = float("nan")


def spoiled(batch: Batch) -> Batch:
    views = tuple(view * NAN for view in batch.views)
    return replace(batch, views=views, labelled=cases.global_batch(0).labelled_part()[0] * NAN)


def take(learner: Learner, batch: Batch, step: int) -> None:
    learner.accumulate_gradients([batch])
    learner.update_student(step)
    learner.update_teacher(step)


def tensors(learner: Learner) -> dict[str, Tensor]:
    momenta = {
        f"optimizer.{i}.{name}": torch.as_tensor(value).clone()
        for i, state in enumerate(learner.optimizer.state.values())
        for name, value in state.items()
    }
    return {**momenta, **{name: tensor.clone() for name, tensor in learner.named_tensors()}}


def learner_of(name: str, **changes: Any) -> Learner:
    return cases.learner_of(name, on_nonfinite="warn", bank={"other": spatial_ensemble(0.5)}, **changes)


def assert_left_out(name: str, **changes: Any) -> None:
    learner, never_met = learner_of(name, **changes), learner_of(name, **changes)
    first, second = cases.micro_batches(name)
    take(learner, first, 0)
    take(never_met, first, 0)
    before = tensors(learner)
    take(learner, spoiled(second), 1)
    assert bool(learner.skip)
    after = tensors(learner)  # with momenta of zero for weights that were frozen before
    assert_same_bits({key: after[key] for key in before}, before)
    learner.take_back()
    for trained in (learner, never_met):
        take(trained, second, 1)
        assert not bool(trained.skip)
    assert_same_bits(tensors(learner), tensors(never_met))
    assert learner.smoother.applied == never_met.smoother.applied
    assert learner.bank is not None
    assert never_met.bank is not None
    assert learner.bank.applied == never_met.bank.applied


@pytest.mark.parametrize("name", cases.METHODS)
def test_a_batch_that_is_left_out_changes_no_bit_of_any_method(name: str) -> None:
    assert_left_out(name)


@pytest.mark.parametrize("optimizer", ["lars", "adamw"])
def test_every_optimizer_leaves_a_batch_out(optimizer: Any) -> None:
    assert_left_out("byol", optimizer=OptimizerConfig(name=optimizer, clip_gradient_norm=1.0))


@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adamw"])
def test_a_first_batch_that_is_left_out_leaves_no_trace_in_the_momenta(optimizer: Any) -> None:
    changes = {"optimizer": OptimizerConfig(name=optimizer)}
    learner, never_met = learner_of("byol", **changes), learner_of("byol", **changes)
    first, _ = cases.micro_batches("byol")
    take(learner, spoiled(first), 0)
    learner.take_back()
    for trained in (learner, never_met):
        take(trained, first, 0)
    assert_same_bits(tensors(learner), tensors(never_met))


def test_one_infinite_gradient_is_enough() -> None:
    learner = learner_of("byol")
    weight = next(p for p in learner.method.student.parameters() if p.dim() == 4)
    weight.register_hook(lambda gradient: gradient.masked_fill(torch.arange(gradient.shape[-1]) == 0, float("inf")))
    before = tensors(learner)
    metrics = learner.accumulate_gradients(cases.micro_batches("byol"))
    learner.update_student(0)
    learner.update_teacher(0)
    assert torch.isfinite(metrics["loss"])
    assert bool(learner.skip)
    after = tensors(learner)
    assert_same_bits({key: after[key] for key in before}, before)
