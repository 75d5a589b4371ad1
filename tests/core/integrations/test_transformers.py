"""The teacher of a model that a real transformers Trainer trains."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import StateError, spatial_temporal_smoothing

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which Trainer needs")
from sts_core.integrations.transformers import add_teacher  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
CONFIG = spatial_temporal_smoothing(0.9, 0.5, granularity="neuron")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Linear(4, 3)

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def examples() -> list[dict[str, Any]]:
    inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return [{"x": row, "labels": i % 3} for i, row in enumerate(inputs)]


def trainer(folder: Path, **options: Any) -> Any:
    settings: dict[str, Any] = {"max_steps": 6, "save_steps": 2, "report_to": [], "use_cpu": True, "seed": 5}
    settings |= {"per_device_train_batch_size": 4, "disable_tqdm": True, "learning_rate": 0.1, "save_strategy": "steps"}
    arguments = transformers.TrainingArguments(output_dir=str(folder), **(settings | options))
    return transformers.Trainer(model=Model(), args=arguments, train_dataset=examples(), eval_dataset=examples())


def weights(module: Any) -> Any:
    return module.net.weight.detach().clone()


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}, {"bf16": True}])
def test_the_teacher_moves_once_for_every_optimizer_step(tmp_path: Path, options: dict[str, Any]) -> None:
    run = trainer(tmp_path, **options)
    callback = add_teacher(run, CONFIG, seed=3)
    run.train()
    assert callback.smoother is not None
    assert callback.smoother.step == run.state.global_step == 6
    assert not torch.equal(weights(callback.teacher), weights(run.model))


def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    straight = add_teacher(run, CONFIG, seed=3)
    run.train()
    again = trainer(tmp_path)
    resumed = add_teacher(again, CONFIG, seed=3)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(weights(again.model), weights(run.model))
    assert torch.equal(weights(resumed.teacher), weights(straight.teacher))


def test_evaluation_computes_with_the_teacher_and_the_model_keeps_its_weights(tmp_path: Path) -> None:
    run = trainer(tmp_path, eval_strategy="steps", eval_steps=3)
    callback = add_teacher(run, CONFIG, seed=3)
    run.train()
    before = weights(run.model)
    got = torch.from_numpy(run.predict(examples()).predictions)
    inputs = torch.stack([example["x"] for example in examples()])
    torch.testing.assert_close(got, callback.teacher.net(inputs))
    assert torch.equal(weights(run.model), before)


def test_a_checkpoint_without_a_teacher_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    run = trainer(tmp_path)
    add_teacher(run, CONFIG, seed=3)
    with pytest.raises(StateError, match=r"needs its teacher, but .*checkpoint-4 has no teacher.json"):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
