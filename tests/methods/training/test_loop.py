"""The loop: what a step does, what it logs and what stops it."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sts_core import Smoother, SmoothingConfig, no_smoothing, spatial_ensemble, temporal_moving_average
from sts_core.errors import ConfigError
from sts_methods.data.batches import build_training_data
from sts_methods.data.config import DataConfig
from sts_methods.methods.byol import ByolConfig
from sts_methods.methods.fixmatch import FixMatchConfig
from sts_methods.methods.moco import MoCoConfig
from sts_methods.methods.registry import MethodConfig, build_method, method_name
from sts_methods.training.config import TrainingConfig
from sts_methods.training.data import build_data
from sts_methods.training.drift import drift_tracker
from sts_methods.training.learner import Learner
from sts_methods.training.loop import fit
from sts_methods.training.optimizers import OptimizerConfig
from sts_methods.training.precision import autocast_dtype, cpu_supports
from tests.methods.training import tiny_training as tiny


@pytest.mark.slow
def test_the_loop_equals_the_algorithm_written_out(tmp_path: Path) -> None:
    config = tiny.tiny_config(optimizer=OptimizerConfig(lr=0.5, momentum=0.0, weight_decay=0.01, schedule="constant"))
    config = TrainingConfig(**{**config.__dict__, "channels_last": False})
    result = tiny.tiny_fit(config, tiny.runtime(tmp_path))

    method = tiny.TinyMethod(config.method, seed=0)
    smoother = Smoother(student=method.student, teacher=method.teacher, config=config.smoothing, seed=0)
    batches = build_training_data(config.data, seed=0, global_batch_size=352).steps(0)
    trained = [p for p in method.parameters() if p.requires_grad]
    for _ in range(12):
        loss = method(next(batches)[0]).loss
        gradients = torch.autograd.grad(loss, trained)
        with torch.no_grad():
            for weight, gradient in zip(trained, gradients, strict=True):
                weight -= 0.5 * 352 / 256 * (gradient + 0.01 * weight)
        smoother.update()
    for name, tensor in method.state_dict().items():
        torch.testing.assert_close(result.method.state_dict()[name], tensor, msg=name)


def test_data_of_ones_own_takes_the_place_of_the_configs(tmp_path: Path) -> None:
    config = tiny.tiny_config(steps=2, accumulation=2)

    def weights(name: str, seed: int | None) -> Any:
        data = (
            None if seed is None else build_training_data(config.data, seed=seed, global_batch_size=352, accumulation=2)
        )
        method = tiny.TinyMethod(config.method, seed=0)
        return tiny.weights(fit(config, tiny.runtime(tmp_path / name), method=method, data=data))

    tiny.assert_same_bits(weights("passed", 0), weights("built", None))
    assert not torch.equal(weights("other", 1)["queue"], weights("again", 0)["queue"])


@pytest.mark.parametrize(
    "method",
    [
        ByolConfig(backbone="wrn_10_1", stem="cifar", hidden_dim=8, projection_dim=4),
        MoCoConfig(backbone="wrn_10_1", stem="cifar", dim=4, queue_size=16, bn_groups=2),
    ],
    ids=method_name,
)
def test_without_smoothing_the_teacher_is_the_student(method: MethodConfig, tmp_path: Path) -> None:
    data = DataConfig(image_size=8, views=method_name(method))  # type: ignore[arg-type]
    smoothing = no_smoothing(buffers="keep")
    config = TrainingConfig(method=method, smoothing=smoothing, data=data, global_batch_size=8, steps=2)
    trained = fit(config, tiny.runtime(tmp_path)).method
    student, start = dict(trained.student.named_parameters()), build_method(method, seed=0).teacher
    for name, weight in trained.teacher.named_parameters():
        assert torch.equal(weight, student[name]), name
    assert not torch.equal(student["head.0.weight"], start.get_parameter("head.0.weight"))


@pytest.mark.slow
def test_two_runs_of_one_config_are_the_same_to_the_bit(tmp_path: Path) -> None:
    first, second = (tiny.tiny_fit(tiny.tiny_config(), tiny.runtime(tmp_path / name)) for name in "ab")
    tiny.assert_same_bits(tiny.weights(first), tiny.weights(second))
    assert tiny.logged(tmp_path / "a") == tiny.logged(tmp_path / "b")
    other = tiny.tiny_fit(tiny.tiny_config(seed=1), tiny.runtime(tmp_path / "c"))
    assert not torch.equal(tiny.weights(first)["queue"], tiny.weights(other)["queue"])


def test_gradient_accumulation_updates_the_teacher_once_per_optimizer_step(tmp_path: Path) -> None:
    runtime = tiny.runtime(tmp_path)
    tiny.tiny_fit(tiny.tiny_config(accumulation=4, steps=4), runtime)
    state = runtime.restore()
    assert state is not None
    assert state["smoother"]["step"] == 4


def test_accumulated_gradients_are_the_mean_over_micro_batches(tmp_path: Path) -> None:
    config = tiny.tiny_config(accumulation=2, steps=1, optimizer=OptimizerConfig(lr=1.0, scale_lr=False, momentum=0.0))
    result = tiny.tiny_fit(config, tiny.runtime(tmp_path))
    method = tiny.TinyMethod(config.method, seed=0)
    batches = next(build_training_data(config.data, seed=0, global_batch_size=352, accumulation=2).steps(0))
    sum((method(batch).loss for batch in batches), start=torch.zeros(())).div(2).backward()
    weight = method.predictor.weight
    assert weight.grad is not None
    expected = weight.detach() - (weight.grad + 1e-4 * weight.detach())
    torch.testing.assert_close(result.method.predictor.weight.detach(), expected)


@pytest.mark.slow
def test_the_momentum_follows_its_schedule_and_a_spatial_ensemble_stays_one(tmp_path: Path) -> None:
    def applied(name: str, **changes: Any) -> list[float]:
        tiny.tiny_fit(tiny.tiny_config(steps=4, **changes), tiny.runtime(tmp_path / name))
        return [entry["momentum"] for entry in tiny.logged(tmp_path / name)]

    assert applied("constant") == [0.9] * 4
    assert applied("cosine", momentum_schedule="cosine") == pytest.approx([0.9, 0.914645, 0.95, 0.985355], abs=1e-6)
    moving = temporal_moving_average(0.7, buffers="keep")
    assert applied("warmup", smoothing=moving, momentum_schedule="warmup") == pytest.approx([1 / 2, 2 / 3, 0.7, 0.7])
    ensemble = spatial_ensemble(0.5, buffers="keep")
    assert applied("ensemble", smoothing=ensemble, momentum_schedule="cosine") == [0.0] * 4
    assert applied("ensemble_warmup", smoothing=ensemble, momentum_schedule="warmup") == [0.0] * 4


def test_a_banks_teachers_are_those_of_separate_runs(tmp_path: Path) -> None:
    # FixMatch's teacher only watches its student, so the student is the same in both runs.
    own, other = temporal_moving_average(0.9), spatial_ensemble(0.5)
    config = TrainingConfig(
        method=FixMatchConfig(backbone="wrn_10_1", stem="cifar", num_classes=10, threshold=0.1),
        smoothing=own,
        data=DataConfig(image_size=8, views="fixmatch", num_labels=10, unlabelled_ratio=1),
        global_batch_size=8,
        steps=3,
        bank={"own": own, "other": other},
    )
    both = fit(config, tiny.runtime(tmp_path / "both"))
    separate = fit(replace(config, smoothing=other, bank={}), tiny.runtime(tmp_path / "separate"))
    tiny.assert_same_bits(both.bank["own"].state_dict(), both.method.teacher.state_dict())
    tiny.assert_same_bits(both.bank["other"].state_dict(), separate.method.teacher.state_dict())


def test_every_saved_teacher_names_its_own_smoothing_whatever_the_banks_names(tmp_path: Path) -> None:
    bank = {"teacher": spatial_ensemble(0.5), "student": no_smoothing()}
    method = ByolConfig(backbone="wrn_10_1", stem="cifar", hidden_dim=8, projection_dim=4)
    config = TrainingConfig(method=method, data=DataConfig(image_size=8), global_batch_size=8, steps=1, bank=bank)
    fit(config, tiny.runtime(tmp_path))

    def preserved(name: str) -> float:
        value: float = json.loads((tmp_path / f"{name}.json").read_text())["smoothing"]["preserve_probability"]
        return value

    names = ("teacher", "student", "bank/teacher", "bank/student")
    assert [preserved(name) for name in names] == [0.7, 0.7, 0.5, 0.0]


@pytest.mark.slow
def test_drift_is_recorded_once_per_epoch_and_is_zero_for_a_frozen_teacher(tmp_path: Path) -> None:
    tiny.tiny_fit(tiny.tiny_config(track_drift=True), tiny.runtime(tmp_path / "moving"))
    drift = {
        entry["step"]: entry["parameter_drift"]
        for entry in tiny.logged(tmp_path / "moving")
        if "parameter_drift" in entry
    }
    assert list(drift) == [4, 8, 12]
    assert min(drift.values()) > 0.0
    with pytest.warns(UserWarning, match="freezes"):
        frozen = SmoothingConfig(momentum=0.0, preserve_probability=1.0, buffers="keep")
    tiny.tiny_fit(tiny.tiny_config(track_drift=True, smoothing=frozen), tiny.runtime(tmp_path / "frozen"))
    assert [e["parameter_drift"] for e in tiny.logged(tmp_path / "frozen") if "parameter_drift" in e] == [0.0] * 3


def test_images_per_second_count_those_of_unequal_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sts_methods.batch.rank", lambda: 1)
    monkeypatch.setattr("sts_methods.training.run.time", SimpleNamespace(monotonic=lambda: 0.0))
    config = tiny.tiny_config(steps=1)
    data = build_training_data(config.data, seed=0, global_batch_size=11, rank=1, world_size=3)
    result = fit(config, tiny.runtime(tmp_path), method=tiny.TinyMethod(config.method, seed=0), data=data)
    assert result.metrics["images_per_second"] == pytest.approx(11 / 1e-9)


@pytest.mark.parametrize("rank", range(3))
def test_drift_is_measured_on_the_unlabelled_images_of_all_ranks_with_unequal_parts(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered: list[Any] = []

    def gather(view: Tensor, rows: tuple[int, ...]) -> Tensor:
        gathered.append((len(view), rows))
        return view

    monkeypatch.setattr("sts_methods.batch.rank", lambda: rank)
    monkeypatch.setattr("sts_methods.training.drift.gather_batch", gather)
    views = DataConfig(views="fixmatch", num_labels=40, image_size=8, unlabelled_ratio=7)
    config = TrainingConfig(method=FixMatchConfig(num_classes=10), data=views, global_batch_size=8, epochs=1)
    data = build_data(config, SimpleNamespace(rank=rank, world_size=3, device=torch.device("cpu")))  # type: ignore[arg-type]
    drift_tracker(config, data, nn.Linear(1, 1))
    assert gathered == [((14, 21, 21)[rank], (14, 21, 21))]


def test_drift_within_less_than_an_epoch_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 3 of an epoch's 4 steps: train at least one"):
        tiny.tiny_fit(tiny.tiny_config(track_drift=True, steps=3), tiny.runtime(tmp_path))


def test_channels_last_changes_no_result_beyond_rounding(tmp_path: Path) -> None:
    plain, strided = (
        tiny.tiny_fit(tiny.tiny_config(channels_last=flag, steps=3), tiny.runtime(tmp_path / str(flag)))
        for flag in (False, True)
    )
    assert strided.method.student[0].weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(plain.method.student[0].weight, strided.method.student[0].weight, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_compiled_networks_train_to_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def trace_only(module: nn.Module) -> None:
        """torch.compile without its code generator, which takes minutes."""
        compiled.append(type(module).__name__)
        module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", trace_only)
    plain, traced = (
        tiny.tiny_fit(tiny.tiny_config(compile=flag, steps=4, track_drift=True), tiny.runtime(tmp_path / str(flag)))
        for flag in (False, True)
    )
    assert compiled == ["Sequential", "Sequential"]
    tiny.assert_same_bits(tiny.weights(plain), tiny.weights(traced))


@pytest.mark.skipif(not cpu_supports("bfloat16"), reason="this CPU has no bfloat16 arithmetic")
def test_bfloat16_trains_and_keeps_weights_and_teacher_in_float32(tmp_path: Path) -> None:
    result = tiny.tiny_fit(tiny.tiny_config(precision="bfloat16"), tiny.runtime(tmp_path / "bfloat16"))
    assert {p.dtype for p in result.method.parameters()} == {torch.float32}
    reference = tiny.tiny_fit(tiny.tiny_config(), tiny.runtime(tmp_path / "float32"))
    assert result.metrics["loss"] == pytest.approx(reference.metrics["loss"], rel=0.2)
    assert result.metrics["loss"] != reference.metrics["loss"]


def test_a_cpu_without_the_hardware_gets_float32_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sts_methods.training.precision.cpu_supports", lambda precision: False)
    with pytest.warns(UserWarning, match="no bfloat16 arithmetic"):
        assert autocast_dtype("bfloat16", torch.device("cpu")) is None
    assert autocast_dtype("float16", torch.device("cuda")) is torch.float16


def test_a_gpu_without_bfloat16_gets_float16_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_it, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has_it=has_it: has_it)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            assert autocast_dtype("bfloat16", torch.device("cuda")) is expected
        assert [str(w.message) for w in warned] == (
            [] if has_it else ["this GPU has no bfloat16 arithmetic: training in float16"]
        )


def test_compiling_a_norm_that_several_workers_share_is_refused(tmp_path: Path) -> None:
    config = tiny.tiny_config(compile=True)
    runtime = tiny.runtime(tmp_path)
    runtime.world_size = 2
    with pytest.raises(ConfigError, match=r"compile must be false where .* got true for 2"):
        Learner(config, tiny.TinyMethod(config.method, seed=0), runtime, total_steps=12, steps_per_epoch=4)


def test_a_scaler_that_skips_a_step_keeps_the_teacher_from_moving(tmp_path: Path) -> None:
    config = tiny.tiny_config()
    method = tiny.TinyMethod(config.method, seed=0)
    learner = Learner(config, method, tiny.runtime(tmp_path), total_steps=12, steps_per_epoch=4)
    learner.scaler = torch.amp.GradScaler("cpu", enabled=True)
    batches = next(build_training_data(config.data, seed=0, global_batch_size=352).steps(0))
    spoil = method.predictor.weight.register_hook(lambda gradient: gradient * float("inf"))
    for step, finite in enumerate((False, True, False)):  # also the first step, which has no momenta to keep
        if finite:
            spoil.remove()
        elif step:
            method.predictor.weight.register_hook(lambda gradient: gradient * float("inf"))
        before = {name: p.detach().clone() for name, p in method.named_parameters()}
        learner.accumulate_gradients(batches)
        scale = learner.scaler.get_scale()
        learner.update_student(step)
        learner.update_teacher(step)
        assert bool(learner.skip) is not finite
        assert learner.scaler.get_scale() == (scale if finite else scale / 2)
        kept = [name for name, p in method.named_parameters() if torch.equal(p, before[name])]
        assert (len(kept) == len(before)) is not finite
    assert all(torch.isfinite(state["momentum_buffer"]).all() for state in learner.optimizer.state.values())


def test_gradients_are_clipped_to_the_norm_asked_for(tmp_path: Path) -> None:
    optimizer = OptimizerConfig(lr=1.0, scale_lr=False, momentum=0.0, weight_decay=0.0, clip_gradient_norm=0.01)
    config = tiny.tiny_config(steps=1, optimizer=optimizer)
    result = tiny.tiny_fit(config, tiny.runtime(tmp_path))
    start = tiny.TinyMethod(config.method, seed=0)
    pairs = [(a, b) for a, b in zip(result.method.parameters(), start.parameters(), strict=True) if a.requires_grad]
    moved = torch.cat([(a - b).detach().flatten() for a, b in pairs]).norm()
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_buffers_that_do_not_suit_the_methods_teacher_give_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"smoothing\.buffers='keep', got 'copy'"):
        tiny.tiny_fit(tiny.tiny_config(smoothing=no_smoothing(), steps=1), tiny.runtime(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ({"epochs": 3}, "exactly one of epochs and steps"),
        ({"steps": None}, "exactly one of epochs and steps"),
        ({"steps": 0}, "steps must be positive"),
        ({"stop_after_epochs": 0}, "stop_after_epochs must be positive"),
        ({"steps": None, "epochs": 3, "stop_after_epochs": 4}, "stop_after_epochs must be at most epochs=3, got 4"),
        ({"precision": "half"}, "precision must be one of"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be at least 1"),
        ({"on_collapse": "ignore"}, "on_collapse must be one of stop, warn"),
        ({"bank": {"../teacher": no_smoothing()}}, "got '../teacher': rename it"),
        ({"seed": -1}, r"seed must be an integer in \[0, 2\*\*64\)"),
        ({"seed": 2**64}, r"seed must be an integer in \[0, 2\*\*64\)"),
        ({"collapse_feature_std": float("nan")}, "collapse_feature_std must be zero or positive and finite"),
        ({"collapse_effective_rank": float("inf")}, "collapse_effective_rank must be zero or positive and finite"),
        ({"bank": {".": no_smoothing()}}, "got '.': rename it"),
        ({"bank": {"mine": no_smoothing(buffers="keep")}}, "got buffers='keep' for 'mine': use 'copy' or 'smooth'"),
    ],
)
def test_a_setting_outside_its_domain_is_refused_when_the_config_is_made(wrong: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        tiny.tiny_config(**wrong)


def test_a_batch_that_no_epoch_can_fill_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower global_batch_size"):
        tiny.tiny_fit(tiny.tiny_config(global_batch_size=1 << 16), tiny.runtime(tmp_path))


def test_views_of_another_method_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.views must be the views that fixmatch trains on"):
        TrainingConfig(method=FixMatchConfig(num_classes=10), data=DataConfig(views="byol"), steps=1)
