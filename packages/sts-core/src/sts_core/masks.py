"""Which units an update touches: pure functions of (seed, update index, unit), in plain PyTorch, on any device.

This module is the specification of the draws; the compiled and the Triton kernels reproduce it bit for bit.

Every bit comes from Philox4x32-10, a counter-based generator. Its key is the 64-bit seed, its counter is

    (position, stream tag low, stream tag high, update index)

where the stream tag is a hash of what is drawn for (`stream_tag`) and the position counts inside that stream. Nothing
is stored between draws, so all ranks, devices and resumed runs agree without talking to each other.

    layer, module   one 32-bit word for the tensor or module
    channel         one 32-bit word for each index of dim 0
    neuron, p < .97 16 bits for each pair of weights, 32 more when those fall exactly on a threshold (`_draw_pairs`)
    neuron, p ≥ .97 the gaps between updated weights, geometrically distributed (`_draw_gaps`)

A unit is updated when its word is not below p·2³². Quantisation: each unit's probability is p to within 2⁻³³ for
words, 2⁻⁴⁸ for pairs of weights and 2⁻³³ for each gap.
"""

import hashlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["neuron_mask", "philox"]

WORD = 1 << 32
_LOW = WORD - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

SPARSE_FROM = 0.97  # where drawing gaps becomes cheaper than drawing every weight; depends on p alone
CHUNK = 128  # weights served by eight Philox calls, one per SIMD lane
LANES = 8
BLOCK = 16_384  # weights that share a stream of gaps
CALLS_PER_BLOCK = BLOCK // 4  # Philox calls reserved for a block: each of their four words advances by at least 1
WEIGHTS_AT_ONCE = 1 << 20  # drawn at once in plain PyTorch: temporaries stay in the cache
NUM_GAPS = 1024  # gaps at least this long are drawn in several parts: the geometric distribution has no memory


@lru_cache(maxsize=1 << 16)
def stream_tag(kind: str, name: str) -> int:
    """The 64-bit name of a stream, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=8).digest(), "little")


def philox(position: Tensor, tag: Tensor | int, step: Tensor | int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10: four int64 tensors of 32-bit words for each position (arguments broadcast).

    int64 products wrap, which leaves both of their 32-bit halves right; c1 and c3 carry bits above the 32nd, which are
    cut off where they matter. Six buffers are used in turn, since allocating would cost more than computing.
    """
    shape = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        position.shape, getattr(tag, "shape", ()), getattr(step, "shape", ())
    )
    c0, c1, c2, c3, product0, product1 = torch.empty((6, *shape), dtype=torch.int64, device=position.device)
    tag = signed(tag) if isinstance(tag, int) else tag
    for word, value in ((c0, position), (c1, tag), (c2, tag >> 32), (c3, step)):
        word.copy_(torch.as_tensor(value & _LOW, device=position.device))
    key0, key1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(10):
        torch.mul(c0, _MULTIPLIERS[0], out=product0)
        torch.mul(c2, _MULTIPLIERS[1], out=product1)
        torch.bitwise_right_shift(product1, 32, out=c0).bitwise_xor_(c1).bitwise_xor_(key0).bitwise_and_(_LOW)
        torch.bitwise_right_shift(product0, 32, out=c2).bitwise_xor_(c3).bitwise_xor_(key1).bitwise_and_(_LOW)
        c1, product1 = product1, c1
        c3, product0 = product0, c3
        key0, key1 = (key0 + _KEY_STEPS[0]) & _LOW, (key1 + _KEY_STEPS[1]) & _LOW
    return c0, c1.bitwise_and_(_LOW), c2, c3.bitwise_and_(_LOW)


def signed(tag: int) -> int:
    """A 64-bit tag as torch stores it: two's complement."""
    return tag - (1 << 64) if tag >> 63 else tag


def threshold(probability: float, bits: int) -> int:
    """round(p·2^bits), from the decimal that the user wrote."""
    return round(Fraction(str(probability)) * (1 << bits))


def unit_words(tags: Tensor, steps: Tensor, seed: int) -> Tensor:
    """[steps, streams]: one word for each, the draws of layers and modules."""
    return philox(torch.zeros_like(tags), tags, steps[:, None], seed)[0]


def is_sparse(probability: float) -> bool:
    """Whether neurons are drawn by gaps. A function of p alone, so that resuming and ranks agree."""
    return probability >= SPARSE_FROM


class Segment(NamedTuple):
    """Weights begin … end of a tensor's row-major order."""

    tensor: int
    begin: int
    end: int


def neuron_masks(
    sizes: Sequence[tuple[str, int]], *, probability: float, step: int, seed: int, device: torch.device
) -> Iterator[tuple[Segment, Tensor]]:
    """For each (tensor name, number of weights): int8 masks, 1 where a weight is updated and 0 where it stays.

    Small tensors are drawn together and large ones in parts, so that operations are few and temporaries bounded.
    """
    sparse = is_sparse(probability)
    for batch in _batches([size for _, size in sizes], BLOCK if sparse else CHUNK):
        draw = _draw_gaps if sparse else _draw_pairs
        mask = draw(batch, [sizes[segment.tensor][0] for segment in batch], probability, step, seed, device)
        start = 0
        for segment in batch:
            yield segment, mask[start : start + segment.end - segment.begin]
            start += _padded(segment, BLOCK if sparse else CHUNK)


def neuron_range(
    segment: Segment, name: str, *, probability: float, step: int, seed: int, device: torch.device
) -> Tensor:
    """The mask of any stretch of one tensor's weights: drawn from the beginning of its unit, of which it is cut out."""
    draw, unit = (_draw_gaps, BLOCK) if is_sparse(probability) else (_draw_pairs, CHUNK)
    begin = segment.begin // unit * unit
    drawn = draw([Segment(0, begin, segment.end)], [name], probability, step, seed, device)
    return drawn[segment.begin - begin : segment.end - begin]


def neuron_mask(name: str, size: int, *, probability: float, step: int, seed: int) -> Tensor:
    """bool [size]: which weights of one tensor are updated."""
    pieces = neuron_masks([(name, size)], probability=probability, step=step, seed=seed, device=torch.device("cpu"))
    return torch.cat([torch.zeros(0, dtype=torch.int8), *(mask for _, mask in pieces)]) > 0


def _padded(segment: Segment, unit: int) -> int:
    return -(-(segment.end - segment.begin) // unit) * unit


def _batches(sizes: Sequence[int], unit: int) -> Iterator[list[Segment]]:
    """Groups of segments that begin at multiples of `unit`, with at most WEIGHTS_AT_ONCE weights and their padding."""
    batch: list[Segment] = []
    left = WEIGHTS_AT_ONCE
    for tensor, size in enumerate(sizes):
        begin = 0
        while begin < size:
            segment = Segment(tensor, begin, min(size, begin + left))
            batch.append(segment)
            left -= _padded(segment, unit)
            begin = segment.end
            if left < unit:
                yield batch
                batch, left = [], WEIGHTS_AT_ONCE
    if batch:
        yield batch


def _positions(
    batch: list[Segment], names: list[str], kind: str, unit: int, calls: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The first position of each unit of the batch, and the tag of its stream, each [units]."""
    units = [_padded(segment, unit) // unit for segment in batch]
    first = torch.tensor([segment.begin // unit for segment in batch])
    tags = torch.tensor([signed(stream_tag(kind, name)) for name in names])
    counts = torch.tensor(units)
    inside = torch.arange(sum(units)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    position = (first.repeat_interleave(counts) + inside) * calls
    return position.to(device), tags.repeat_interleave(counts).to(device)


def pair_thresholds(probability: float) -> tuple[int, int, int]:
    """48-bit thresholds p², p, 1 − (1 − p)²: where the joint outcome of a pair of weights changes.

    Below the first both weights stay; up to the second only the second is updated; up to the third only the first is;
    above it both are.
    """
    p, scale = Fraction(str(probability)), 1 << 48
    return round(p * p * scale), round(p * scale), round((2 * p - p * p) * scale)


def _draw_pairs(
    batch: list[Segment], names: list[str], probability: float, step: int, seed: int, device: torch.device
) -> Tensor:
    """One draw of 16 bits per pair of weights (i, i + 8), and 32 more bits where they equal a threshold's upper 16.

    Weight i sits in chunk i // 128 at r = i % 128. It uses word r // 32, half (r // 16) % 2 of position 8·chunk + r % 8
    and is the pair's second when (r // 8) % 2. The 32 bits that break a tie are word r // 32 of position
    2·(8·chunk + r % 8) + half in the stream "neuron-tie".
    """
    position, tags = _positions(batch, names, "neuron", CHUNK, LANES, device)
    lanes = (position[:, None] + torch.arange(LANES, device=device)).view(-1)
    words = philox(lanes, tags.repeat_interleave(LANES), step, seed)
    # 16-bit numbers, order preserved, and comparisons by clamp: booleans would take ten times as long on a CPU.
    bits = torch.empty(len(position), 4, 2, LANES, dtype=torch.int16, device=device)
    for number, word in enumerate(words):
        bits[:, number, 0].copy_(word.view(-1, LANES))
        bits[:, number, 1].copy_(word.bitwise_right_shift_(16).view(-1, LANES))
    bits.bitwise_xor_(-(1 << 15))
    thresholds = pair_thresholds(probability)
    highs = [(t >> 32) - (1 << 15) for t in thresholds]
    above = [bits.clamp(high, high + 1).sub_(high) for high in highs]
    ties = _ties(bits, highs)
    if len(ties):
        tie_tags = _positions(batch, names, "neuron-tie", CHUNK, LANES, device)[1]
        _break_ties_(above, bits, ties, position, tie_tags, thresholds, step, seed)
    above_both, above_one, above_none = above
    members = [above_one, above_both.bitwise_xor_(above_one).bitwise_xor_(above_none)]
    # The eight lanes of a mask are moved as one 64-bit number: [chunks, 4, 2, member, LANES] is row-major order.
    return torch.stack([m.to(torch.int8).view(torch.int64) for m in members], dim=3).view(torch.int8).view(-1)


def _ties(bits: Tensor, highs: Sequence[int]) -> Tensor:
    """Indices (chunk, word, half, lane) of the pairs whose 16 bits equal a threshold's, by rows of 64 first."""
    distinct = [bits.sub(high).clamp_(-1, 1) for high in highs]  # differences wrap, but only equality gives 0
    product = distinct[0].mul_(distinct[1]).mul_(distinct[2]).abs_().view(-1, 4 * 2 * LANES)
    rows = (product.amin(dim=1) == 0).nonzero()[:, 0]
    row, column = (product[rows] == 0).nonzero().unbind(1)
    return torch.stack([rows[row], column // (2 * LANES), column // LANES % 2, column % LANES], dim=1)


def _break_ties_(
    above: list[Tensor],
    bits: Tensor,
    ties: Tensor,
    position: Tensor,
    tags: Tensor,
    thresholds: tuple[int, int, int],
    step: int,
    seed: int,
) -> None:
    """Decide the pairs whose 16 bits equal a threshold's by 32 more."""
    chunk, word, half, lane = ties.unbind(1)
    extra = torch.stack(philox(2 * (position[chunk] + lane) + half, tags[chunk], step, seed), dim=1)
    high = bits[chunk, word, half, lane].long() + (1 << 15)
    value = (high << 32) | extra.gather(1, word[:, None])[:, 0]
    for mask, t in zip(above, thresholds, strict=True):
        mask[chunk, word, half, lane] = (value >= t).to(torch.int16)


@lru_cache(maxsize=256)
def gap_thresholds(probability: float) -> tuple[int, ...]:
    """round(p^g·2³²) for g = 1 … NUM_GAPS: a word below the g-th means a gap of at least g."""
    p = Fraction(str(probability))
    bits = 96  # guard bits beyond the 32 that count
    value, thresholds = 1 << (32 + bits), []
    for _ in range(NUM_GAPS):
        value = value * p.numerator // p.denominator
        thresholds.append((value + (1 << (bits - 1))) >> bits)
    return tuple(thresholds)


def _draw_gaps(
    batch: list[Segment], names: list[str], probability: float, step: int, seed: int, device: torch.device
) -> Tensor:
    """Updated weights found by their gaps, for each block of 16,384 weights apart.

    Draw k of block b is word k % 4 of position 4096·b + k // 4 in the stream "neuron-gap". A word w gives the gap
    g = #{j : w < round(pʲ·2³²), 1 ≤ j ≤ 1024}. A gap below 1024 skips g weights and updates the next; one of 1024 skips
    1024 weights and draws again.
    """
    first, tags = _positions(batch, names, "neuron-gap", BLOCK, CALLS_PER_BLOCK, device)
    mask = torch.zeros(len(first) * BLOCK, dtype=torch.int8, device=device)
    start = torch.arange(len(first), device=device)[:, None] * BLOCK
    ascending = torch.tensor(gap_thresholds(probability)[::-1], device=device)
    offset = torch.zeros(len(first), dtype=torch.int64, device=device)  # next undecided weight of each block
    calls = min(
        CALLS_PER_BLOCK, int(BLOCK * (1 - probability)) // 4 + 8
    )  # a round's Philox calls: about what is needed
    for call in range(0, CALLS_PER_BLOCK, calls):
        position = first[:, None] + torch.arange(call, call + calls, device=device)
        words = torch.stack(philox(position, tags[:, None], step, seed), dim=-1).view(len(first), -1)
        gap = NUM_GAPS - torch.searchsorted(ascending, words, right=True)
        reached = offset[:, None] + torch.where(gap < NUM_GAPS, gap + 1, gap).cumsum(1)
        hit = (gap < NUM_GAPS) & (reached <= BLOCK)
        mask[(start + reached - 1)[hit]] = 1
        offset = reached[:, -1]
        if bool((offset >= BLOCK).all()):
            break
    return mask
