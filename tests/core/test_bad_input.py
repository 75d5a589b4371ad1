"""Each kind of bad input raises one sentence with the rule, the value and the remedy, before anything is changed."""

import copy
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sts_core import (
    Buffers,
    ConfigError,
    PairingError,
    Smoother,
    SmoothingConfig,
    StateError,
    StsError,
    TeacherBank,
    constant_momentum,
    cosine_momentum,
    fragment_age,
    make_teacher,
    no_smoothing,
    output_drift,
    spatial_temporal_smoothing,
    temporal_moving_average,
)
from tests.core.networks import moved


def build(student: nn.Module, teacher: nn.Module, **more: object) -> Smoother:
    arguments = {"config": no_smoothing(), "seed": 0, **more}
    return Smoother(student=student, teacher=teacher, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": -0.1}, r"momentum must be in [0, 1], got -0.1: it is a fraction"),
        ({"momentum": float("nan")}, r"momentum must be in [0, 1], got nan"),
        ({"preserve_probability": 1.01}, r"preserve_probability must be in [0, 1], got 1.01"),
        ({"momentum": "0.9"}, r"momentum must be a number in [0, 1], got '0.9': pass a float"),
        ({"momentum": True}, r"momentum must be a number in [0, 1], got True"),
        ({"granularity": "tensor"}, "granularity must be one of layer, module, channel, neuron, got 'tensor'"),
        ({"buffers": "average"}, "buffers must be one of copy, smooth, keep, got 'average'"),
    ],
)
def test_a_setting_outside_its_domain_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        SmoothingConfig(**{"momentum": 0.9, "preserve_probability": 0.5, **arguments})


@pytest.mark.parametrize("seed", [-1, 1 << 64, 0.5, True, None])
def test_a_seed_that_is_no_64_bit_number_is_refused(student: nn.Module, seed: object) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"seed must be an integer in [0, 2**64), got {seed!r}")):
        build(student, make_teacher(student), seed=seed)


def test_a_student_that_is_the_teacher_is_refused(student: nn.Module) -> None:
    with pytest.raises(PairingError, match=r"must be two modules, got one twice: make the teacher by make_teacher"):
        build(student, student)


def test_memory_shared_by_student_and_teacher_is_refused(student: nn.Module) -> None:
    teacher = make_teacher(student)
    teacher.conv.weight = student.conv.weight
    with pytest.raises(PairingError, match=r"must not share memory, but 'conv.weight' is one tensor in both"):
        build(student, teacher)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_teacher_in_16_bits_is_refused(student: nn.Module, dtype: torch.dtype) -> None:
    with pytest.raises(PairingError, match=r"teacher must be float32, but its '.*' is (b?float16), in which small"):
        build(student, make_teacher(student).to(dtype))


def test_a_teacher_with_more_than_the_student_is_refused(student: nn.Module) -> None:
    teacher = make_teacher(student)
    teacher.predictor = nn.Linear(2, 2)
    with pytest.raises(PairingError, match=r"the student, which lacks 'predictor.weight', 'predictor.bias': make the"):
        build(student, teacher)


def test_a_teacher_that_lacks_a_tensor_is_refused(student: nn.Module) -> None:
    teacher = make_teacher(student)
    teacher.head.bias = None
    with pytest.raises(PairingError, match=r"the same parameters in both, but the teacher lacks 'head.bias'"):
        build(student, teacher)


def test_a_student_with_a_predictor_more_is_welcome(student: nn.Module) -> None:
    teacher = make_teacher(student)
    student.predictor = nn.Linear(2, 2)
    with torch.no_grad():
        student.conv.weight.add_(1)
    build(student, teacher).update()
    assert torch.equal(teacher.conv.weight, student.conv.weight)


def test_a_reshaped_tensor_is_refused(student: nn.Module) -> None:
    teacher = make_teacher(student)
    teacher.head = nn.Linear(70, 299)
    with pytest.raises(PairingError, match=r"'head.weight' is \(300, 70\) in the student and \(299, 70\) in"):
        build(student, teacher)


def test_a_missing_buffer_is_refused_unless_buffers_are_kept(student: nn.Module) -> None:
    teacher = make_teacher(student)
    del student.norm.running_mean
    with pytest.raises(PairingError, match=r"every buffer of the teacher .* lacks 'norm.running_mean'"):
        build(student, teacher)
    build(student, teacher, config=no_smoothing(buffers="keep")).update()
    assert torch.equal(teacher.conv.weight, student.conv.weight)


def test_many_missing_names_are_counted(student: nn.Module) -> None:
    teacher = make_teacher(student)
    teacher.more = nn.ModuleList(nn.Linear(1, 1) for _ in range(4))
    with pytest.raises(PairingError, match=r"'more.0.weight', 'more.0.bias', 'more.1.weight' and 5 more"):
        build(student, teacher)


def test_a_teacher_that_ties_what_the_student_does_not_is_refused() -> None:
    student = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    teacher = make_teacher(student)
    teacher[1].weight = teacher[0].weight
    with pytest.raises(PairingError, match=r"ties '0.weight' to '1.weight' but the student does not"):
        build(student, teacher)


@pytest.mark.parametrize("role", ["student", "teacher"])
def test_a_parameter_added_after_construction_is_noticed(student: nn.Module, role: str) -> None:
    teacher = make_teacher(student)
    smoother = build(student, teacher)
    (student if role == "student" else teacher).head.register_parameter("scale", nn.Parameter(torch.ones(1)))
    before = copy.deepcopy(teacher.conv.weight)
    with pytest.raises(PairingError, match=rf"the {role}'s parameters .* 'scale' was added.*: build the Smoother"):
        smoother.update()
    assert smoother.step == 0
    assert torch.equal(before, teacher.conv.weight)


def test_a_module_added_after_construction_is_noticed(student: nn.Module) -> None:
    smoother = build(student, make_teacher(student))
    student.head.lora = nn.Linear(2, 2)
    with pytest.raises(PairingError, match=r"'lora' was added, removed or replaced"):
        smoother.update()


def test_weights_without_values_are_refused() -> None:
    student = nn.Linear(2, 2, device="meta")
    with pytest.raises(PairingError, match=r"'weight' is on the meta device and has no values"):
        build(student, make_teacher(student))


def test_a_config_is_no_dict(student: nn.Module) -> None:
    config: Any = {"momentum": 0.9}
    with pytest.raises(ConfigError, match=r"config must be a SmoothingConfig, got dict"):
        build(student, make_teacher(student), config=config)
    with pytest.raises(ConfigError, match=r"config must be a SmoothingConfig, got dict"):
        TeacherBank(student=student, configs={"it": config}, seed=0)


def test_a_removed_module_is_noticed(student: nn.Module) -> None:
    smoother = build(student, make_teacher(student))
    del student.head
    with pytest.raises(PairingError, match=r"'head' was added, removed or replaced"):
        smoother.update()


def test_what_a_module_registers_in_another_order_or_for_itself_is_let_be(student: nn.Module) -> None:
    teacher = make_teacher(student)
    smoother = build(student, teacher)
    student.head.weight = student.head._parameters.pop("weight")
    teacher.head.register_buffer("positions", torch.arange(3), persistent=False)
    smoother.update()
    assert torch.equal(teacher.head.weight, student.head.weight)


def test_a_replaced_parameter_is_noticed(student: nn.Module) -> None:
    smoother = build(student, make_teacher(student))
    student.head.weight = nn.Parameter(torch.zeros(300, 70))
    with pytest.raises(PairingError, match=r"'weight' was added, removed or replaced"):
        smoother.update()


def test_a_replaced_module_is_noticed(student: nn.Module) -> None:
    smoother = build(student, make_teacher(student))
    student.head = nn.Linear(70, 300)
    with pytest.raises(PairingError, match=r"'head' was added, removed or replaced"):
        smoother.update()


def test_memory_that_moves_is_followed(student: nn.Module) -> None:
    teacher = make_teacher(student)
    smoother = build(student, teacher)
    student.head.weight.data = torch.full((300, 70), 3.0)
    teacher.load_state_dict(moved(teacher).state_dict(), assign=False)
    smoother.update()
    assert torch.equal(teacher.head.weight, torch.full((300, 70), 3.0))


def test_a_student_cast_after_construction_is_followed_and_a_teacher_refused(student: nn.Module) -> None:
    teacher = make_teacher(student)
    smoother = build(student, teacher)
    student.bfloat16()
    smoother.update()
    assert torch.equal(teacher.conv.weight, student.conv.weight.float())
    teacher.bfloat16()
    with pytest.raises(PairingError, match=r"the teacher must be float32"):
        smoother.update()


@pytest.mark.parametrize("policy", ["copy", "smooth"])
@pytest.mark.parametrize("in_a_bank", [False, True])
def test_buffers_that_are_other_tensors_than_before_are_followed(
    student: nn.Module, policy: Buffers, in_a_bank: bool
) -> None:
    config = no_smoothing(buffers=policy)
    bank = TeacherBank(student=student, configs={"it": config}, seed=0)
    smoother = build(student, make_teacher(student), config=config)

    def followed() -> Tensor:
        (bank if in_a_bank else smoother).update()
        teacher = bank.teachers["it"] if in_a_bank else smoother.teacher
        return teacher.norm.running_mean  # type: ignore[no-any-return]

    student.double()  # `.to()` keeps parameters and makes new buffers
    student.norm.running_mean.fill_(3)
    assert torch.equal(followed(), torch.full((10,), 3.0))
    student.norm.running_mean = torch.full((10,), 5.0)
    assert torch.equal(followed(), torch.full((10,), 5.0))
    student.norm.running_mean = torch.zeros(9)
    with pytest.raises(PairingError, match=r"'norm.running_mean' is \(9,\) in the student and \(10,\) in the teacher"):
        followed()


def test_a_lazy_student_without_weights_is_told_to_run_first() -> None:
    student = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(PairingError, match="a lazy module has no weights to copy yet: run a batch through the student"):
        make_teacher(student)
    student(torch.ones(2, 4))
    build(student, make_teacher(student)).update()


def test_a_teacher_made_in_inference_mode_can_be_updated_outside(student: nn.Module) -> None:
    with torch.inference_mode():
        teacher = make_teacher(student)
    smoother = build(student, teacher, config=temporal_moving_average(0.5))
    smoother.update()
    assert smoother.step == 1
    assert not teacher.conv.weight.is_inference()


def test_the_state_of_another_config_is_refused_and_the_difference_named(student: nn.Module) -> None:
    state = build(student, make_teacher(student), config=spatial_temporal_smoothing(0.99, 0.7)).state_dict()
    other = build(student, make_teacher(student), config=temporal_moving_average(0.99))
    with pytest.raises(StateError, match=r"but preserve_probability was 0.7 and is now 0.0: build the Smoother with"):
        other.load_state_dict(state)
    assert other.step == 0


def test_something_that_is_no_state_is_refused(student: nn.Module) -> None:
    with pytest.raises(StateError, match=r"has version 1, seed, step and config, this one has step"):
        build(student, make_teacher(student)).load_state_dict({"step": 3})


def test_an_empty_bank_is_refused(student: nn.Module) -> None:
    with pytest.raises(ConfigError, match="needs at least one config, got none"):
        TeacherBank(student=student, configs={}, seed=0)


def test_schedules_refuse_impossible_steps() -> None:
    with pytest.raises(ConfigError, match="step must not be negative, got -1"):
        cosine_momentum(-1, total_steps=10, start=0.9)
    with pytest.raises(ConfigError, match="total_steps must be at least 1, got 0"):
        cosine_momentum(0, total_steps=0, start=0.9)
    with pytest.raises(ConfigError, match=r"momentum must be in \[0, 1\], got 2"):
        constant_momentum(0, momentum=2)


def test_drift_refuses_what_cannot_be_compared(student: nn.Module) -> None:
    with pytest.raises(PairingError, match=r"outputs must have one shape, got \(2, 3\) and \(2, 4\)"):
        output_drift(nn.Linear(5, 3), nn.Linear(5, 4), torch.zeros(2, 5))
    with pytest.raises(ConfigError, match="step and horizon must not be negative, got -1 and None"):
        fragment_age(student, no_smoothing(), seed=0, step=-1)


def test_errors_are_of_one_family_and_survive_pickling() -> None:
    for kind in (ConfigError, PairingError, StateError):
        error = pickle.loads(pickle.dumps(kind("a sentence")))  # noqa: S301 - our own bytes
        assert isinstance(error, StsError)
        assert isinstance(error, ValueError)
        assert str(error) == "a sentence"


def test_a_teacher_that_moves_between_forward_and_backward_is_caught_by_autograd(student: nn.Module) -> None:
    teacher = make_teacher(student)
    smoother = build(student, teacher, config=temporal_moving_average(0.5))
    inputs = torch.ones(2, 70, requires_grad=True)
    output = teacher.head(inputs).square().sum()
    smoother.update()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_a_config_error_carries_the_names_of_its_fields_also_through_a_pickle() -> None:
    with pytest.raises(ConfigError) as caught:
        SmoothingConfig(momentum=0.9, preserve_probability=2.0)
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (str(copied), copied.fields) == (str(caught.value), ("preserve_probability",))
    assert ConfigError("nothing in particular").fields == ()
