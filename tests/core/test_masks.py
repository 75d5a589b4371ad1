"""The draws: the published generator, i.i.d. Bernoulli(p), independent over steps and tensors in any batching."""

import math

import pytest
import torch
from torch import Tensor

from sts_core import masks
from sts_core.kernels.interface import Rule
from sts_core.kernels.reference import drawn_channels, drawn_units
from tests.core.paper import PaperDraws


def neurons(p: float, *, name: str = "w", size: int = 400_000, step: int = 0, seed: int = 3) -> Tensor:
    return masks.neuron_mask(name, size, probability=p, step=step, seed=seed).double()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # known answers of Philox4x32-10, published with Random123
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
            0xFFFFFFFFFFFFFFFF,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            0x299F31D0A4093822,
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_generator_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: int, expected: tuple[int, ...]
) -> None:
    position, low, high, step = counter
    words = masks.philox(torch.tensor([position]), (high << 32) | low, step, key)
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize("p", [0.1, 0.5, 0.7, 0.9, 0.969, 0.97, 0.99, 0.999])
def test_neurons_are_preserved_with_probability_p(p: float) -> None:
    kept = 1 - neurons(p)
    sigma = math.sqrt(p * (1 - p) / len(kept))
    assert abs(float(kept.mean()) - p) < 5 * sigma


@pytest.mark.parametrize("p", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("granularity", ["layer", "module", "channel"])
def test_units_are_preserved_with_probability_p(p: float, granularity: str) -> None:
    names = [f"m{k}.weight" for k in range(300)]
    total, count = 0, 0
    for step in range(40):
        rule = Rule(0.9, p, granularity, step, 7)
        if granularity == "channel":
            updated = torch.cat(drawn_channels([(name, 17) for name in names], rule))
        else:
            updated = torch.tensor(drawn_units(names, rule))
        total, count = total + int((~updated).sum()), count + len(updated)
    assert abs(total / count - p) < 5 * math.sqrt(p * (1 - p) / count)


def correlation(a: Tensor, b: Tensor) -> float:
    """In units of its standard deviation under independence."""
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1]) * math.sqrt(len(a))


@pytest.mark.parametrize("p", [0.5, 0.7, 0.99])
def test_draws_are_independent_over_steps_tensors_seeds_and_neighbours(p: float) -> None:
    base = neurons(p)
    for other in (neurons(p, step=1), neurons(p, name="v"), neurons(p, seed=4), neurons(p, step=1 << 31)):
        assert abs(correlation(base, other)) < 5
    for lag in (1, 2, 7, 8, 16, 64, 128, 16_384):  # 8 is the distance of a pair that shares 16 bits
        assert abs(correlation(base[:-lag], base[lag:])) < 5


@pytest.mark.parametrize("p", [0.5, 0.7])
def test_pairs_have_the_joint_distribution_of_two_independent_draws(p: float) -> None:
    kept = (1 - neurons(p)).view(-1, 2, 8)
    both = (kept[:, 0] * kept[:, 1]).mean()
    sigma = math.sqrt(p**2 * (1 - p**2) / (kept.numel() / 2))
    assert abs(float(both) - p**2) < 5 * sigma


def test_layers_of_one_module_move_apart_and_modules_move_together() -> None:
    names = [f"m{k}.{leaf}" for k in range(200) for leaf in ("weight", "bias")]
    module = torch.tensor(drawn_units(names, Rule(0.9, 0.5, "module", 0, 1))).view(-1, 2)
    layer = torch.tensor(drawn_units(names, Rule(0.9, 0.5, "layer", 0, 1))).view(-1, 2)
    assert torch.equal(module[:, 0], module[:, 1])
    assert 0.3 < float((layer[:, 0] == layer[:, 1]).double().mean()) < 0.7


@pytest.mark.parametrize("p", [0.7, 0.97, 0.99])
def test_draws_of_a_tensor_do_not_depend_on_what_is_drawn_beside_it(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [("a", 100), ("b", 70_000), ("c", 1), ("d", 0), ("e", 40_000)]
    alone = {name: masks.neuron_mask(name, size, probability=p, step=5, seed=9) for name, size in sizes}
    monkeypatch.setattr(masks, "WEIGHTS_AT_ONCE", 1 << 15)
    together: dict[str, list[Tensor]] = {name: [] for name, _ in sizes}
    device = torch.device("cpu")
    for segment, mask in masks.neuron_masks(sizes, probability=p, step=5, seed=9, device=device):
        together[sizes[segment.tensor][0]].append(mask > 0)
    for name, size in sizes:
        pieces = torch.cat([torch.zeros(0, dtype=torch.bool), *together[name]])
        assert len(pieces) == size
        assert torch.equal(pieces, alone[name])


@pytest.mark.slow
@pytest.mark.parametrize("p", [0.5, 0.7])
def test_ties_are_broken_by_the_second_draw(p: float) -> None:
    size = 60_000  # about one pair in 20,000 ties
    ours = masks.neuron_mask("w", size, probability=p, step=2, seed=11)
    theirs = ~torch.tensor(PaperDraws(11).neurons("w", size, 2, p))
    assert torch.equal(ours, theirs)


def test_probabilities_are_read_as_the_decimals_that_were_written() -> None:
    assert masks.threshold(0.1, 32) == round(2**32 / 10)
    assert masks.pair_thresholds(0.1) == (round(2**48 / 100), round(2**48 / 10), round(2**48 * 19 / 100))


def test_gap_thresholds_are_powers_of_p() -> None:
    thresholds = masks.gap_thresholds(0.99)
    for gap in (1, 2, 50, 1024):
        assert abs(thresholds[gap - 1] - 0.99**gap * 2**32) < 2
