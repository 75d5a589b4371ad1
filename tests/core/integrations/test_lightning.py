"""The callback in real Lightning trainers: the teacher is the one that a loop of one's own would have kept."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sts_core import (
    ConfigError,
    Smoother,
    StateError,
    averages_and_fragments,
    make_teacher,
    spatial_temporal_smoothing,
    temporal_moving_average,
)
from sts_core.doctor import examine

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")
from sts_core.integrations.lightning import BankCallback, TeacherCallback  # noqa: E402
from sts_core.integrations.parameter_lists import multi_avg_fn  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
CONFIG = spatial_temporal_smoothing(0.9, 0.5, granularity="channel")


class Module(lightning.LightningModule):  # type: ignore[misc,name-defined]
    """A student that notes its weights after every optimizer step, and what it computes with when it is validated."""

    def __init__(self, fail_in_validation: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.fail, self.history, self.validated = fail_in_validation, [], []
        self._last = 0

    def training_step(self, batch: Any, index: int) -> Tensor:
        return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

    def on_train_batch_end(self, *args: Any) -> None:
        if self.trainer.global_step > self._last:
            self._last = self.trainer.global_step
            self.history.append({name: value.clone() for name, value in self.state_dict().items()})

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated.append(self.net[0].weight.detach().clone())
        if self.fail and len(self.history):
            raise RuntimeError("in the middle of a validation")

    def test_step(self, batch: Any, index: int) -> None:
        self.validated.append(self.net[0].weight.detach().clone())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loader() -> Any:
    images = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=4)


def trainer(folder: Path, callback: TeacherCallback, **options: Any) -> Any:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    keep = lightning.callbacks.ModelCheckpoint(folder, save_top_k=-1, every_n_train_steps=1, filename="{step}")
    return lightning.Trainer(accelerator="cpu", callbacks=[callback, keep], **(quiet | options))


def replayed(module: Module) -> nn.Module:
    """The teacher of a loop that made these steps."""
    student = Module()
    teacher = make_teacher(student)
    smoother = Smoother(student=student, teacher=teacher, config=CONFIG, seed=3)
    for state in module.history:
        student.load_state_dict(state)
        smoother.update()
    return teacher


def assert_same(a: nn.Module, b: nn.Module) -> None:
    assert all(torch.equal(x, b.state_dict()[name]) for name, x in a.state_dict().items())


def test_validation_and_test_compute_with_the_teacher_and_training_goes_on_with_the_student(tmp_path: Path) -> None:
    module, callback = Module(), TeacherCallback(CONFIG, seed=3)
    run = trainer(tmp_path, callback, max_epochs=1, num_sanity_val_steps=1)
    run.fit(module, loader(), loader())
    assert torch.equal(module.validated[-1], callback.teachers["teacher"].net[0].weight)
    assert not torch.equal(module.validated[-1], module.net[0].weight)
    assert_same(callback.teachers["teacher"], replayed(module))
    run.test(module, loader(), verbose=False)
    assert torch.equal(module.validated[-1], callback.teachers["teacher"].net[0].weight)
    assert torch.equal(module.net[0].weight, module.history[-1]["net.0.weight"])


def test_an_error_in_validation_leaves_the_module_its_own_weights(tmp_path: Path) -> None:
    module, callback = Module(fail_in_validation=True), TeacherCallback(CONFIG, seed=3)
    with pytest.raises(RuntimeError, match="in the middle of a validation"):
        trainer(tmp_path, callback, max_epochs=1).fit(module, loader(), loader())
    assert torch.equal(module.net[0].weight, module.history[-1]["net.0.weight"])


def test_a_resumed_training_ends_with_the_same_bits_and_the_checkpoint_names_both(tmp_path: Path) -> None:
    module, straight = Module(), TeacherCallback(CONFIG, seed=3)
    trainer(tmp_path / "a", straight, max_epochs=2).fit(module, loader())
    first = TeacherCallback(CONFIG, seed=3)
    trainer(tmp_path / "b", first, max_epochs=1).fit(Module(), loader())
    saved = torch.load(tmp_path / "b" / "step=8.ckpt", weights_only=True)
    assert_same(first.teachers["teacher"], _loaded(saved["teachers"]["teacher"]))
    assert not torch.equal(saved["state_dict"]["net.0.weight"], saved["teachers"]["teacher"]["net.0.weight"])
    resumed, again = TeacherCallback(CONFIG, seed=3), Module()
    trainer(tmp_path / "c", resumed, max_epochs=2).fit(again, loader(), ckpt_path=tmp_path / "b" / "step=8.ckpt")
    assert_same(again, module)
    assert_same(resumed.teachers["teacher"], straight.teachers["teacher"])


def _loaded(state: dict[str, Tensor]) -> nn.Module:
    module = Module()
    module.load_state_dict(state)
    return module


def test_a_checkpoint_is_tested_with_its_teacher_without_training(tmp_path: Path) -> None:
    trained = TeacherCallback(CONFIG, seed=3)
    trainer(tmp_path, trained, max_steps=3).fit(Module(), loader())
    module = Module()
    run = trainer(tmp_path, TeacherCallback(CONFIG, seed=3))
    run.test(module, loader(), ckpt_path=tmp_path / "step=3.ckpt", verbose=False)
    assert torch.equal(module.validated[-1], trained.teachers["teacher"].net[0].weight)


def test_after_a_training_a_checkpoint_is_tested_with_its_own_teacher(tmp_path: Path) -> None:
    module, callback = Module(), TeacherCallback(CONFIG, seed=3)
    run = trainer(tmp_path, callback, max_epochs=1)
    run.fit(module, loader())
    with pytest.raises(StateError, match="evaluates the module that it follows, got another one: pass ckpt_path"):
        run.test(Module(), loader(), verbose=False)
    saved = torch.load(tmp_path / "step=3.ckpt", weights_only=True)["teachers"]["teacher"]
    for tested in (module, Module()):
        run.test(tested, loader(), ckpt_path=tmp_path / "step=3.ckpt", verbose=False)
        assert torch.equal(tested.validated[-1], saved["net.0.weight"])


def test_several_teachers_of_one_run_are_those_of_single_ones(tmp_path: Path) -> None:
    configs = {"sts": CONFIG, "control": CONFIG.matched_moving_average(), "tma": temporal_moving_average(0.9)}
    module, bank = Module(), TeacherCallback(configs, seed=3, evaluate_with="tma", part="net")
    trainer(tmp_path / "bank", bank, max_epochs=2).fit(module, loader(), loader())
    single = TeacherCallback(CONFIG, seed=3, part="net")
    trainer(tmp_path / "single", single, max_epochs=2).fit(Module(), loader())
    assert_same(bank.teachers["sts"], single.teachers["teacher"])
    resumed = TeacherCallback(configs, seed=3, evaluate_with=None, part="net")
    path = tmp_path / "bank" / "step=8.ckpt"
    trainer(tmp_path / "more", resumed, max_epochs=2).fit(Module(), loader(), ckpt_path=path)
    for name in configs:
        assert_same(resumed.teachers[name], bank.teachers[name])


def value(module: Any) -> dict[str, float]:
    assert not module.training
    return {"value": float(module.net(torch.ones(2, 4)).square().mean())}


def test_a_bank_measures_its_teachers_after_every_epoch_and_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    def fit(folder: str, epochs: int, path: Path | None = None) -> BankCallback:
        bank = BankCallback(value, averages_and_fragments(0.9), seed=3, path=tmp_path / folder / "averages.jsonl")
        trainer(tmp_path / folder, bank, max_epochs=epochs).fit(Module(), loader(), loader(), ckpt_path=path)
        return bank

    straight = fit("straight", 3)
    fit("cut", 1)
    resumed = fit("cut", 3, tmp_path / "cut" / "step=8.ckpt")
    records = [(tmp_path / name / "averages.jsonl").read_text() for name in ("straight", "cut")]
    assert records[0] == records[1]
    head, *lines = map(json.loads, records[0].splitlines())
    assert [line["step"] for line in lines] == [8] * 9 + [16] * 9 + [24] * 9
    assert {line["teacher"] for line in lines} == {None, *head["configs"]}
    teachers = {name: value(teacher.eval())["value"] for name, teacher in straight.teachers.items()}
    assert {line["teacher"]: line["values"]["value"] for line in lines[-8:]} == teachers
    assert len(set(teachers.values())) == 8
    for name, teacher in straight.teachers.items():
        assert_same(teacher, resumed.teachers[name])
    with pytest.raises(ConfigError, match="use TeacherCallback for one"):
        BankCallback(value, {"teacher": CONFIG})


def test_a_teacher_of_adapters_shares_the_frozen_base_and_resumes(tmp_path: Path) -> None:
    def fit(folder: str, epochs: int, path: Path | None = None) -> TeacherCallback:
        module, callback = Module(), TeacherCallback(CONFIG, seed=3, trainable_only=True)
        module.net[0].requires_grad_(False)
        trainer(tmp_path / folder, callback, max_epochs=epochs).fit(module, loader(), ckpt_path=path)
        teacher = callback.teachers["teacher"]
        assert teacher.net[0].weight is module.net[0].weight
        assert not torch.equal(teacher.net[2].weight, module.net[2].weight)
        return callback

    straight, _ = fit("straight", 2), fit("cut", 1)
    resumed = fit("resumed", 2, tmp_path / "cut" / "step=8.ckpt")
    assert_same(resumed.teachers["teacher"], straight.teachers["teacher"])


@pytest.mark.parametrize("part", ["", "generator"])
def test_of_several_optimizers_those_of_the_part_count_once(part: str, tmp_path: Path) -> None:
    class Adversaries(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.critic, self.automatic_optimization = nn.Linear(4, 4), nn.Linear(4, 1), False

        def training_step(self, batch: Any, index: int) -> None:
            for optimizer in self.optimizers() if index % 2 == 0 else self.optimizers()[-1:]:
                self.manual_backward(self.critic(self.generator(batch[0])).square().mean())
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.generator, self.critic)]

    module, callback = Adversaries(), TeacherCallback(CONFIG, seed=3, part=part)
    trainer(tmp_path, callback, max_epochs=1).fit(module, loader())
    assert module.trainer.global_step == 12  # Lightning counts the steps of all optimizers
    assert callback.follower is not None
    assert callback.follower.step == (4 if part else 8)


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluate_with must be None or one of teacher, got 'ema'"):
        TeacherCallback(CONFIG, evaluate_with="ema")
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    plain = lightning.Trainer(max_steps=1, default_root_dir=tmp_path, **quiet)
    plain.fit(Module(), loader())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(StateError, match="the checkpoint must hold the teachers teacher, it holds none"):
        trainer(tmp_path, TeacherCallback(CONFIG), max_steps=2).fit(
            Module(), loader(), ckpt_path=tmp_path / "plain.ckpt"
        )


def test_lightnings_own_averaging_takes_ours(tmp_path: Path) -> None:
    average = lightning.callbacks.WeightAveraging(multi_avg_fn=multi_avg_fn(CONFIG, seed=3))
    module = Module()
    trainer(tmp_path, average, max_epochs=1, accumulate_grad_batches=2).fit(module, loader())
    assert len(module.history) == 4
    student = Module()
    student.load_state_dict(module.history[0])  # its first update copies
    followed = nn.ParameterList(student.parameters())
    teacher = make_teacher(followed)
    smoother = Smoother(student=followed, teacher=teacher, config=CONFIG, seed=3)
    for state in module.history[1:]:
        student.load_state_dict(state)
        smoother.update()
    for own, expected in zip(module.parameters(), teacher.parameters(), strict=True):  # it ends with the average
        assert torch.equal(own, expected)
    found = examine(tmp_path / "step=2.ckpt", tmp_path / "step=4.ckpt")
    assert not [finding.text for finding in found if finding.wrong]
    assert "state_dict, the average of current_model_state, moved over 2 steps" in found[-1].text


def test_a_resumed_teacher_is_made_when_the_module_is_where_it_trains(tmp_path: Path) -> None:
    class Strategy(lightning.strategies.SingleDeviceStrategy):  # type: ignore[misc,name-defined]
        """Instead of moving the restored module to a GPU it puts other weights in the place of its own."""

        def model_to_device(self) -> None:
            for name, weight in list(self.model.net[0].named_parameters()):
                setattr(self.model.net[0], name, nn.Parameter(weight.detach().clone()))

    def fit(folder: str, epochs: int, path: Path | None = None) -> TeacherCallback:
        callback = TeacherCallback(CONFIG, seed=3)
        run = trainer(tmp_path / folder, callback, max_epochs=epochs, strategy=Strategy(device=torch.device("cpu")))
        run.fit(Module(), loader(), ckpt_path=path)
        return callback

    straight, _ = fit("straight", 2), fit("cut", 1)
    resumed = fit("resumed", 2, tmp_path / "cut" / "step=8.ckpt")
    assert_same(resumed.teachers["teacher"], straight.teachers["teacher"])
