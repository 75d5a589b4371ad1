"""The native kernel equals the reference: bits of masks, one rounding of values, for any shape, type and layout."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sts_core import SmoothingConfig
from sts_core.errors import ConfigError
from sts_core.kernels import compilation, native
from sts_core.kernels.choice import bind
from sts_core.kernels.interface import Kernel, Pair, Rule
from sts_core.kernels.reference import ReferenceKernel

SHAPES = [(), (0,), (1,), (130,), (0, 5), (7, 3), (300, 257), (3, 20_000), (70, 33, 3, 3), (4, 3, 1, 1), (40_000, 1)]
SHAPES += [(2, 900, 5, 5), (900, 2, 5, 5), (30, 20, 7, 7)]  # rows longer than a tile, many in one, wide planes
FORMATS = ["contiguous", "channels_last", "transposed"]


def tensor(shape: tuple[int, ...], dtype: torch.dtype, layout: str) -> Tensor:
    x = torch.randn(shape).to(dtype)
    if layout == "channels_last" and len(shape) == 4:
        return x.to(memory_format=torch.channels_last)
    if layout == "transposed" and len(shape) == 2:
        return torch.randn(shape[::-1]).to(dtype).t()
    return x


def pairs_of(shapes: list[tuple[int, ...]], dtype: torch.dtype, layout: str, teachers: int = 1) -> list[Pair]:
    return [
        Pair(
            f"block{k // 2}.weight{k}",
            tensor(shape, dtype, layout),
            tuple(tensor(shape, torch.float32, layout) for _ in range(teachers)),
        )
        for k, shape in enumerate(shapes)
    ]


def twin(pairs: list[Pair]) -> list[Pair]:
    return [Pair(p.name, p.student, tuple(copy.deepcopy(t) for t in p.teachers)) for p in pairs]


def assert_same_update(kernels: list[Kernel], mine: list[Pair], rules: list[Rule]) -> None:
    theirs, before = twin(mine), twin(mine)
    for kernel in kernels:
        kernel.update(rules)
    ReferenceKernel(theirs).update(rules)
    for a, b, old in zip(mine, theirs, before, strict=True):
        for x, y, z, rule in zip(a.teachers, b.teachers, old.teachers, rules, strict=True):
            if rule.momentum < 1.0:
                assert torch.equal(x != z, y != z), f"{a.name}: other units moved under {rule}"
            torch.testing.assert_close(x, y, rtol=1.2e-7, atol=5e-7)  # one rounding of numbers of this size


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    shapes=st.lists(st.sampled_from(SHAPES), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    layout=st.sampled_from(FORMATS),
    granularity=st.sampled_from(["layer", "module", "channel", "neuron"]),
    p=st.sampled_from([0.0, 0.02, 0.5, 0.7, 0.9, 0.969, 0.97, 0.99, 0.9999, 1 - 1e-12]),
    m=st.sampled_from([0.0, 0.25, 0.5, 0.99, 1.0]),
    step=st.integers(0, 2**40),
    seed=st.integers(0, 2**64 - 1),
)
def test_native_equals_reference(
    shapes: list[tuple[int, ...]],
    dtype: torch.dtype,
    layout: str,
    granularity: str,
    p: float,
    m: float,
    step: int,
    seed: int,
) -> None:
    pairs = pairs_of(shapes, dtype, layout)
    assert_same_update(bind(pairs, "native"), pairs, [Rule(m, p, granularity, step, seed)])


def test_a_bank_of_teachers_is_updated_each_by_its_own_rule() -> None:
    pairs = pairs_of(SHAPES, torch.float32, "contiguous", teachers=5)
    rules = [
        Rule(0.99, 0.0, "layer", 4, 1),
        Rule(0.0, 0.99, "neuron", 4, 1),
        Rule(0.9, 1.0, "layer", 4, 1),
        Rule(0.5, 0.7, "neuron", 4, 1),
        Rule(0.0, 0.5, "channel", 4, 1),
    ]
    assert_same_update(bind(pairs, "native"), pairs, rules)


@pytest.mark.parametrize("p", [0.02, 0.7])
@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.99])
def test_weights_in_channels_last_get_the_masks_of_their_row_major_order(p: float, momentum: float) -> None:
    shapes = [(70, 33, 3, 3), (30, 20, 7, 7), (700, 3, 9, 9), (2, 5000, 3, 3), (2, 8, 50, 50), (40, 12, 1, 1)]
    pairs = pairs_of(shapes, torch.float32, "channels_last")
    assert_same_update(bind(pairs, "native"), pairs, [Rule(momentum, p, "neuron", 1, 2)])


@pytest.mark.parametrize("granularity", ["channel", "neuron"])
@pytest.mark.parametrize("p", [0.7, 0.99])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_one_thread_and_two_give_the_same_bits(granularity: str, p: float, layout: str) -> None:
    one = pairs_of([(1200, 1100), (3, 1_000_000), (512, 512, 3, 3)], torch.float32, layout)
    two = twin(one)
    rule = Rule(0.99, p, granularity, 1, 2)
    for pairs, threads in ((one, 1), (two, 2)):
        torch.set_num_threads(threads)
        try:
            for kernel in bind(pairs, "native"):
                kernel.update([rule])
        finally:
            torch.set_num_threads(1)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.teachers[0], b.teachers[0])


@pytest.fixture
def instruct(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Has the kernel loaded anew, in an instruction set."""

    def chosen(name: str) -> None:
        monkeypatch.setattr(native, "_instruction_set", lambda: name)
        native.library.cache_clear()

    yield chosen
    native.library.cache_clear()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("granularity", "p"), [("channel", 0.7), ("neuron", 0.02), ("neuron", 0.7), ("neuron", 0.99)])
@pytest.mark.parametrize("m", [0.0, 0.3, 0.99])
def test_every_instruction_set_gives_the_same_bits(
    granularity: str, p: float, m: float, dtype: torch.dtype, layout: str, instruct: Callable[[str], None]
) -> None:
    beginning = pairs_of([(300, 257), (70, 33, 3, 3), (30, 20, 7, 7), (60, 3, 9, 9), (5,)], dtype, layout)
    ends = []
    known = compilation.instruction_sets()
    for name in known[: known.index(native._instruction_set()) + 1]:
        instruct(name)
        pairs = twin(beginning)
        for kernel in bind(pairs, "native"):
            kernel.update([Rule(m, p, granularity, 1, 2)])
        ends.append([pair.teachers[0] for pair in pairs])
    for other in ends[1:]:
        assert all(torch.equal(a, b) for a, b in zip(ends[0], other, strict=True))


def test_the_processor_and_torch_choose_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"DEFAULT": "baseline", "AVX2": "avx2", "AVX512": "avx512", "SVE256": "baseline"}
    for capability, expected in known.items():
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert native._instruction_set() == expected


def no_compiler() -> str:
    raise OSError("no C compiler was found")


def test_without_a_compiler_the_reference_serves_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compilation, "_compiler", no_compiler)
    native.library.cache_clear()
    native._notice_once.cache_clear()
    try:
        with caplog.at_level("WARNING", logger="sts_core"):
            kernels = [kernel for _ in range(2) for kernel in bind(pairs_of([(7, 3)], torch.float32, "contiguous"))]
        assert all(isinstance(kernel, ReferenceKernel) for kernel in kernels)
        assert [record.message for record in caplog.records] == [
            "channel and neuron updates run in plain PyTorch, because no C compiler was found; with a C compiler (gcc, "
            "clang or CC) they are faster, with the same result"
        ]
        with pytest.raises(ConfigError, match="backend 'native' needs a C compiler, but no C compiler was found"):
            bind(pairs_of([(7, 3)], torch.float32, "contiguous"), "native")
    finally:
        native.library.cache_clear()
        native._notice_once.cache_clear()


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend must be one of auto, reference, native, triton, got 'cuda'"):
        bind([], "cuda")  # type: ignore[arg-type]


def test_the_environment_can_choose_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STS_CORE_BACKEND", "reference")
    kernels = bind(pairs_of([(7, 3)], torch.float32, "contiguous"))
    assert [type(kernel) for kernel in kernels] == [ReferenceKernel]


@pytest.mark.slow
def test_temporaries_stay_below_64_megabytes() -> None:
    pairs = pairs_of([(3000, 5000)], torch.float32, "contiguous")
    for granularity in ("layer", "channel", "neuron"):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            ReferenceKernel(pairs).update([Rule(0.9, 0.5, granularity, 0, 0)])
        largest = max((event.cpu_memory_usage for event in profile.events()), default=0)
        assert largest < 64 << 20
    assert SmoothingConfig(momentum=0.9, preserve_probability=0.5).granularity == "layer"
