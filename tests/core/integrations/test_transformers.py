"""The teacher of a model that a real transformers Trainer trains."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import ConfigError, StateError, averages_and_fragments, spatial_temporal_smoothing
from sts_core.errors import CheckpointError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which Trainer needs")
import safetensors.torch  # noqa: E402

from sts_core.integrations.transformers import TeacherCallback, add_bank, add_teacher  # noqa: E402

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


def test_the_best_model_is_loaded_with_its_teacher(tmp_path: Path) -> None:
    best: dict[str, Any] = {"load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True}
    run = trainer(tmp_path, eval_strategy="steps", eval_steps=2, **best)
    callback = add_teacher(run, CONFIG, seed=3)
    run.train()
    assert run.state.best_global_step == callback.smoother.step == 2  # the worst, by its loss
    saved = safetensors.torch.load_file(tmp_path / "checkpoint-2" / "teacher.safetensors")
    assert torch.equal(callback.teacher.net.weight, saved["net.weight"])
    assert run.evaluate()["eval_loss"] == run.state.best_metric


def test_a_checkpoint_without_a_teacher_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    run = trainer(tmp_path)
    add_teacher(run, CONFIG, seed=3)
    with pytest.raises(StateError, match=r"needs its teacher, but .*checkpoint-4 has no teacher.json"):
        run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_a_version_that_passes_no_optimizer_is_told_before_anything_is_made(tmp_path: Path) -> None:
    run = trainer(tmp_path)
    teacher, bank = add_teacher(run, CONFIG, seed=3), add_bank(run)
    for callback in (teacher, bank):
        with pytest.raises(ConfigError, match=r"needs the Trainer's optimizer, which this version does not pass"):
            callback.on_train_begin(run.args, run.state, run.control, model=run.model)
    assert teacher.smoother is None
    assert bank.bank is None


def test_a_bank_is_measured_by_the_trainers_own_evaluation_and_resumes(tmp_path: Path) -> None:
    def train(folder: str, resume: str | None = None) -> Any:
        run = trainer(tmp_path / folder, eval_strategy="steps", eval_steps=3)
        callback = add_bank(run, averages_and_fragments(0.9), seed=3)
        run.train(resume_from_checkpoint=resume)
        return run, callback

    run, straight = train("run")
    written = (tmp_path / "run" / "averages.jsonl").read_text()
    _, *lines = map(json.loads, written.splitlines())
    assert [line["step"] for line in lines] == [3] * 9 + [6] * 9
    assert {name for line in lines for name in line["values"]} == {"loss"}
    own = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    assert [line["values"]["loss"] for line in lines if line["teacher"] is None] == own
    inputs = torch.stack([example["x"] for example in examples()])
    labels = torch.tensor([example["labels"] for example in examples()])
    for line in lines[-8:]:
        expected = straight.bank.teachers[line["teacher"]](inputs, labels)["loss"]
        torch.testing.assert_close(torch.tensor(line["values"]["loss"]), expected)
    again, resumed = train("run", str(tmp_path / "run" / "checkpoint-4"))
    assert torch.equal(weights(again.model), weights(run.model))
    assert (tmp_path / "run" / "averages.jsonl").read_text() == written
    for name in straight.bank.configs:
        assert torch.equal(weights(resumed.bank.teachers[name]), weights(straight.bank.teachers[name]))
    bank = tmp_path / "run" / "checkpoint-4" / "bank.pt"
    torch.save({"teachers": print}, bank)
    with pytest.raises(CheckpointError, match=r"holds more than tensors and plain values, and was not opened"):
        train("run", str(tmp_path / "run" / "checkpoint-4"))
    bank.unlink()
    with pytest.raises(StateError, match=r"needs its teachers, but .*bank.pt does not exist"):
        train("run", str(tmp_path / "run" / "checkpoint-4"))


class Adapted(Model):
    """A frozen base and a trainable addition."""

    def __init__(self) -> None:
        super().__init__()
        self.net.requires_grad_(False)
        self.lora = nn.Linear(4, 3, bias=False)

    def forward(self, x: Any, labels: Any = None) -> dict[str, Any]:
        logits = self.net(x) + self.lora(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_a_teacher_of_adapters_shares_the_frozen_base_saves_none_of_it_and_resumes(tmp_path: Path) -> None:
    def train(resume: str | None = None) -> Any:
        run = trainer(tmp_path)
        run.model = Adapted()
        callback = add_teacher(run, CONFIG, seed=3, trainable_only=True)
        run.train(resume_from_checkpoint=resume)
        assert callback.teacher.net.weight is run.model.net.weight
        return callback.teacher

    teacher = train()
    saved = safetensors.torch.load_file(tmp_path / "checkpoint-6" / "teacher.safetensors")
    assert saved.keys() == {"lora.weight"}
    assert torch.equal(saved["lora.weight"], teacher.lora.weight)
    assert torch.equal(train(str(tmp_path / "checkpoint-4")).lora.weight, teacher.lora.weight)
    file = tmp_path / "checkpoint-4" / "teacher.safetensors"
    safetensors.torch.save_file({"other": torch.ones(2)}, file)
    with pytest.raises(CheckpointError, match=r"must be in .*teacher.safetensors and no others, but 1 missing"):
        train(str(tmp_path / "checkpoint-4"))


def test_a_weight_with_two_names_is_saved_once_and_resumed(tmp_path: Path) -> None:
    model = nn.ModuleDict({"embedding": nn.Linear(3, 3)})
    model["head"] = model["embedding"]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    arguments, state = SimpleNamespace(output_dir=tmp_path), SimpleNamespace(global_step=0, is_world_process_zero=True)
    first, resumed = TeacherCallback(CONFIG), TeacherCallback(CONFIG)
    first.on_train_begin(arguments, state, None, model=model, optimizer=optimizer)
    model["head"](torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state.global_step = 1
    (tmp_path / "checkpoint-1").mkdir()
    first.on_save(arguments, state, None)
    assert len(safetensors.torch.load_file(tmp_path / "checkpoint-1" / "teacher.safetensors")) == 2
    resumed.on_train_begin(arguments, state, None, model=model, optimizer=optimizer)
    assert torch.equal(resumed.teacher["head"].weight, first.teacher["head"].weight)
    assert not torch.equal(resumed.teacher["head"].weight, model["head"].weight)
