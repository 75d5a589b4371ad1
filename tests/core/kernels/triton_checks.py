"""What the Triton kernels must do, on a GPU or in Triton's interpreter.

`test_gpu.py` runs this file in a process of its own, since the interpreter has to be chosen before Triton is imported.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sts_core import Smoother, SmoothingConfig, make_teacher, masks
from sts_core.config import Granularity
from sts_core.kernels import triton
from sts_core.kernels.choice import bind
from sts_core.kernels.interface import Kernel, Pair, Rule
from sts_core.kernels.reference import ReferenceKernel
from sts_core.sharded.blocks import Shard

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
GRANULARITIES: tuple[Granularity, ...] = ("layer", "module", "channel", "neuron")

# More than one chunk (128), tile (2,048) and block (16,384); rows that are smaller and larger than a tile; odd sizes.
SHAPES: dict[str, tuple[int, ...]] = {
    "stem.weight": (24, 5, 3, 3),
    "stem.bias": (24,),
    "block.conv.weight": (16, 33, 1, 5),
    "block.scale": (),
    "block.nothing": (0, 3),
    "head.weight": (3, 2049),
    "head.embedding": (17_003,),
}


def make_pairs(student_type: torch.dtype, *, num_teachers: int = 1, channels_last: bool = False) -> list[Pair]:
    generator = torch.Generator().manual_seed(5)

    def tensor(shape: tuple[int, ...]) -> Tensor:
        drawn = torch.randn(shape, generator=generator).to(DEVICE)
        return drawn.to(memory_format=torch.channels_last) if channels_last and len(shape) == 4 else drawn

    return [
        Pair(name, tensor(shape).to(student_type), tuple(tensor(shape) for _ in range(num_teachers)))
        for name, shape in SHAPES.items()
    ]


def copies(pairs: list[Pair]) -> list[Pair]:
    return [Pair(p.name, p.student, tuple(t.clone() for t in p.teachers)) for p in pairs]


def update_by_triton(pairs: list[Pair], rules: list[Rule]) -> None:
    kernels = bind(pairs, "triton")
    assert all(isinstance(kernel, triton.TritonKernel) for kernel in kernels)
    for kernel in kernels:
        kernel.update(rules)


def check_equal_to_reference(pairs: list[Pair], rules: list[Rule]) -> None:
    """Masks to the bit, values within one rounding."""
    before, expected = copies(pairs), copies(pairs)
    update_by_triton(pairs, rules)
    ReferenceKernel(expected).update(rules)
    for start, mine, theirs in zip(before, pairs, expected, strict=True):
        for old, value, reference in zip(start.teachers, mine.teachers, theirs.teachers, strict=True):
            assert torch.equal(value != old, reference != old), mine.name
            torch.testing.assert_close(value, reference, rtol=2**-23, atol=2**-24, msg=mine.name)


@pytest.mark.parametrize("momentum", [0.0, 0.99])
@pytest.mark.parametrize("p", [0.0, 0.5, 0.7, 0.97, 0.99])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_an_update_equals_the_reference(granularity: Granularity, p: float, momentum: float) -> None:
    check_equal_to_reference(make_pairs(torch.float32), [Rule(momentum, p, granularity, 3, 2024)])


@pytest.mark.parametrize(("granularity", "p"), [("channel", 0.5), ("neuron", 0.7), ("neuron", 0.98)])
def test_rows_of_a_larger_tensor_move_as_they_do_in_the_whole(granularity: Granularity, p: float) -> None:
    whole = [*make_pairs(torch.float32)[-2:], Pair("long", torch.randn(3000, 7), (torch.randn(3000, 7),))]
    cuts = [(1, 3), (7_001, 17_003), (1_030, 2_500)]
    parts = [
        Pair(
            w.name,
            w.student[a:b].to(DEVICE),
            (w.teachers[0][a:b].to(DEVICE, copy=True),),
            Shard(w.student.shape, (a, 0)),
        )
        for w, (a, b) in zip(whole, cuts, strict=True)
    ]
    rule = Rule(0.9, p, granularity, 3, 2024)
    ReferenceKernel(whole).update([rule])
    update_by_triton(parts, [rule])
    for part, (name, _, (teacher,), _), (a, b) in zip(parts, whole, cuts, strict=True):
        torch.testing.assert_close(part.teachers[0], teacher[a:b].to(DEVICE), rtol=2**-23, atol=2**-24, msg=name)


def test_columns_of_a_larger_tensor_are_left_to_the_reference() -> None:
    tensor = torch.zeros(4, 3, device=DEVICE)
    kernels: list[Kernel] = []
    pairs = [Pair("rows", tensor, (tensor.clone(),)), Pair("w", tensor, (tensor.clone(),), Shard((4, 9), (0, 3)))]
    assert triton.claim(pairs, kernels, required=True) == pairs[1:]


@pytest.mark.parametrize("student_type", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("granularity", "p"), [("layer", 0.0), ("channel", 0.5), ("neuron", 0.7), ("neuron", 0.99)])
def test_half_precision_students_and_channels_last_equal_the_reference(
    granularity: Granularity, p: float, student_type: torch.dtype
) -> None:
    pairs = make_pairs(student_type, channels_last=True)
    assert not pairs[0].student.is_contiguous()
    check_equal_to_reference(pairs, [Rule(0.3, p, granularity, 3, 2024)])


@pytest.mark.parametrize(("granularity", "p"), [("layer", 0.0), ("channel", 0.5), ("neuron", 0.5), ("neuron", 0.99)])
def test_a_flag_on_the_device_leaves_the_teacher_as_it_is(granularity: Granularity, p: float) -> None:
    pairs, rules = make_pairs(torch.float32), [Rule(0.5, p, granularity, 3, 2024)]
    (kernel,), before = bind(pairs, "triton"), copies(pairs)
    for flag, stays in ((1.0, True), (0.0, False)):
        kernel.update(rules, torch.tensor(flag, device=DEVICE))
        unmoved = [torch.equal(a.teachers[0], b.teachers[0]) for a, b in zip(pairs, before, strict=True)]
        assert all(unmoved) is stays


def test_draws_do_not_depend_on_the_memory_format() -> None:
    rowwise, channelwise = make_pairs(torch.float32), make_pairs(torch.float32, channels_last=True)
    for p in (0.7, 0.99):
        rule = Rule(0.0, p, "neuron", 1, 2)
        update_by_triton(rowwise, [rule])
        update_by_triton(channelwise, [rule])
    for a, b in zip(rowwise, channelwise, strict=True):
        assert torch.equal(a.teachers[0], b.teachers[0]), a.name


def test_teachers_of_one_student_follow_their_own_rules() -> None:
    rules = [
        Rule(0.99, 0.0, "layer", 7, 1),
        Rule(0.0, 0.5, "module", 7, 2),
        Rule(0.9, 1.0, "neuron", 7, 3),
        Rule(0.4, 0.9, "channel", 7, 4),
        Rule(0.4, 0.98, "neuron", 7, 4),
    ]
    check_equal_to_reference(make_pairs(torch.float32, num_teachers=len(rules)), rules)


def test_a_bank_takes_four_launches_whatever_its_teachers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    launched, launch = [], triton.TritonKernel._launch

    def counted(kernel: triton.TritonKernel, code: Any, *arguments: Any, **tables: Any) -> None:
        launched.append(code.fn.__name__)
        launch(kernel, code, *arguments, **tables)

    moments = (0.0, 0.3, 0.99)
    kinds: list[tuple[float, Granularity]] = [(0.0, "neuron"), (1.0, "layer"), (0.97, "neuron"), (0.99, "neuron")]
    kinds += [(p, granularity) for p in (0.5, 0.8) for granularity in GRANULARITIES]
    rules = [Rule(moments[n % 3], p, granularity, 5, 11) for n, (p, granularity) in enumerate(kinds)]
    pairs = [pair for pair in make_pairs(torch.float32, num_teachers=len(rules)) if pair.student.numel() < 6000]
    bind(pairs, "triton")  # its trial update is behind us
    monkeypatch.setattr(triton.TritonKernel, "_launch", counted)
    check_equal_to_reference(pairs, rules)
    assert launched == ["draw_units", "update_units", "update_neurons_sparse", "update_neurons_dense"]


@pytest.mark.parametrize(
    ("seed", "step"), [(0, 0), (1, 1), (2**31, 16), (2**32 + 5, 2**31), (2**63 + 1, 2**32 - 1), (2**64 - 1, 2), (-3, 3)]
)
def test_every_seed_and_step_gives_the_words_of_the_specification(seed: int, step: int) -> None:
    pair = Pair("rows", torch.ones(2500, device=DEVICE), (torch.zeros(2500, device=DEVICE),))
    update_by_triton([pair], [Rule(0.0, 0.5, "channel", step, seed)])
    words = torch.stack(masks.philox(torch.arange(625), masks.stream_tag("channel", "rows"), step, seed), dim=1)
    assert torch.equal(pair.teachers[0].cpu(), (words.view(-1) >= 1 << 31).float())


def has_ties(seed: int, size: int, p: float) -> bool:
    """Whether 16 bits of some pair of weights equal the upper 16 bits of a threshold: three in 65,536 pairs do."""
    words = torch.stack(masks.philox(torch.arange(size // 16), masks.stream_tag("neuron", "w"), 0, seed))
    upper = torch.tensor([threshold >> 32 for threshold in masks.pair_thresholds(p)])
    return bool(torch.isin(torch.cat([words & 0xFFFF, words >> 16]), upper).any())


def test_a_tie_of_the_upper_bits_is_broken_as_specified() -> None:
    tied_seeds = [seed for seed in range(100) if has_ties(seed, 2048, 0.6)]
    assert len(tied_seeds) > 2
    for seed in tied_seeds:
        pair = Pair("w", torch.ones(2048, device=DEVICE), (torch.zeros(2048, device=DEVICE),))
        check_equal_to_reference([pair], [Rule(0.0, 0.6, "neuron", 0, seed)])


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_probability_that_rounds_to_one_updates_nothing(granularity: Granularity) -> None:
    pairs = make_pairs(torch.float32)
    before = copies(pairs)
    update_by_triton(pairs, [Rule(0.0, 1 - 1e-14, granularity, 0, 0)])
    assert all(torch.equal(a.teachers[0], b.teachers[0]) for a, b in zip(pairs, before, strict=True))


@pytest.mark.parametrize("student_type", [torch.float32, torch.bfloat16, torch.float16])
def test_without_smoothing_the_copy_is_bit_exact_whatever_the_teacher_held(student_type: torch.dtype) -> None:
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1.5], device=DEVICE)
    for start, teacher in ((strange, torch.zeros_like(strange)), (torch.ones_like(strange), strange.clone())):
        student = start.to(student_type)
        update_by_triton([Pair("w", student, (teacher,))], [Rule(0.0, 0.0, "layer", 0, 0)])
        torch.testing.assert_close(teacher, student.float(), rtol=0, atol=0, equal_nan=True)
        assert torch.equal(teacher.signbit(), student.signbit())
        if student_type == torch.float32:  # widening may change the bits of a NaN, copying may not
            assert torch.equal(teacher.view(torch.int32), student.view(torch.int32))


def test_tensors_that_start_at_odd_addresses_are_updated_too() -> None:
    student, teacher = torch.randn(5001, device=DEVICE), torch.randn(5001, device=DEVICE)
    pairs = [Pair("view", student[1:], (teacher[1:],))]
    assert pairs[0].student.data_ptr() % 16
    first = teacher[0].item()
    check_equal_to_reference(pairs, [Rule(0.99, 0.0, "layer", 0, 0)])
    assert teacher[0].item() == first


def test_only_dense_pairs_of_one_layout_are_taken() -> None:
    even = torch.zeros(2, 3, 4, 4, device=DEVICE)
    last = even.to(memory_format=torch.channels_last)
    pairs = [
        Pair("taken", even, (even.clone(),)),
        Pair("mixed layouts", even, (last,)),
        Pair("strided", torch.zeros(8, device=DEVICE)[::2], (torch.zeros(8, device=DEVICE)[::2],)),
        Pair("half teacher", even, (even.bfloat16(),)),
        Pair(
            "counter",
            torch.zeros((), dtype=torch.int64, device=DEVICE),
            (torch.zeros((), dtype=torch.int64, device=DEVICE),),
        ),
    ]
    kernels: list[Kernel] = []
    rest = triton.claim(pairs, kernels, required=True)
    assert [pair.name for pair in rest] == ["mixed layouts", "strided", "half teacher", "counter"]
    assert len(kernels) == 1


def test_a_smoother_gives_the_same_teacher_through_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    student = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(5)).to(DEVICE)
    student(torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1)).to(DEVICE))
    config = SmoothingConfig(momentum=0.9, preserve_probability=0.6, granularity="neuron", buffers="smooth")
    results = []
    for backend in ("triton", "reference"):
        monkeypatch.setenv("STS_CORE_BACKEND", backend)
        teacher = make_teacher(student)
        with torch.no_grad():
            for weight in teacher.parameters():
                weight.zero_()
        smoother = Smoother(student=student, teacher=teacher, config=config, seed=3)
        for _ in range(3):
            smoother.update()
        results.append(teacher.state_dict())
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], rtol=2**-22, atol=2**-23, msg=name)
    assert bool((results[0]["0.weight"] != 0).any())
