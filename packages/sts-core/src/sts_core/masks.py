"""Which units an update touches: pure functions of (seed, update index, unit), in plain PyTorch, on any device.

This module is the specification of the draws; the compiled and the Triton kernels reproduce it bit for bit.

Every bit comes from Philox4x32-10, a counter-based generator. Its key is the 64-bit seed, its counter is

    (position, stream tag low, stream tag high, update index)

where the stream tag is a hash of what is drawn for (`stream_tag`) and the position counts inside that stream. Nothing
is stored between draws, so all ranks, devices and resumed runs agree without talking to each other.

    layer, module   one 32-bit word for the tensor or module
    channel         one 32-bit word for each index of dim 0
    neuron, p < .97 16 bits for each pair of weights, 32 more when those fall exactly on a threshold (`neuron_dense`)
    neuron, p ≥ .97 the gaps between updated weights, geometrically distributed (`neuron_sparse`)

A unit is updated when its word is not below p·2³². Quantisation: each unit's probability is p to within 2⁻³³ for
words, 2⁻⁴⁸ for pairs of weights and 2⁻³³ for each gap.
"""

import hashlib
from fractions import Fraction
from functools import lru_cache

import torch
from torch import Tensor

WORD = 1 << 32
_LOW = WORD - 1
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)

SPARSE_FROM = 0.97  # where drawing gaps becomes cheaper than drawing every weight; depends on p alone
CHUNK = 128  # weights served by eight Philox calls, one per SIMD lane
LANES = 8
BLOCK = 16_384  # weights that share a stream of gaps
DRAWS_PER_BLOCK = BLOCK // 4  # Philox calls reserved for a block: each of their four words advances by at least 1
NUM_GAPS = 1024  # gaps at least this long are drawn in several parts: the geometric distribution has no memory


def stream_tag(kind: str, name: str) -> int:
    """The 64-bit name of a stream, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=8).digest(), "little")


def philox(position: Tensor, tag: Tensor | int, step: Tensor | int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10: four int64 tensors of 32-bit words for each position (arguments broadcast)."""
    c0, c1, c2, c3 = torch.broadcast_tensors(  # type: ignore[no-untyped-call]
        position & _LOW,
        torch.as_tensor(signed(tag) & _LOW, device=position.device),
        torch.as_tensor((signed(tag) >> 32) & _LOW, device=position.device),
        torch.as_tensor(step & _LOW, device=position.device),
    )
    key0, key1 = seed & _LOW, (seed >> 32) & _LOW
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # int64 wraps: both halves stay right
        c0 = (product1 >> 32).bitwise_and_(_LOW).bitwise_xor_(c1).bitwise_xor_(key0)
        c2 = (product0 >> 32).bitwise_and_(_LOW).bitwise_xor_(c3).bitwise_xor_(key1)
        c1, c3 = product1.bitwise_and_(_LOW), product0.bitwise_and_(_LOW)
        key0, key1 = (key0 + _KEY_STEPS[0]) & _LOW, (key1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def signed(tag: Tensor | int) -> Tensor | int:
    """A 64-bit tag as torch stores it: two's complement."""
    return tag - (1 << 64) if isinstance(tag, int) and tag >> 63 else tag


def threshold(probability: float, bits: int) -> int:
    """round(p·2^bits), from the decimal that the user wrote."""
    return round(Fraction(str(probability)) * (1 << bits))


def unit_words(tags: Tensor, step: int, seed: int) -> Tensor:
    """One word for each stream: the draws of layers and modules."""
    return philox(torch.zeros_like(tags), tags, step, seed)[0]


def channel_words(num_rows: int, tag: int, step: int, seed: int, device: torch.device) -> Tensor:
    """One word for each index of dim 0; row r takes word r % 4 of position r // 4."""
    position = torch.arange((num_rows + 3) // 4, device=device)
    return torch.stack(philox(position, tag, step, seed), dim=1).view(-1)[:num_rows]


def is_sparse(probability: float) -> bool:
    """Whether neurons are drawn by gaps. A function of p alone, so that resuming and ranks agree."""
    return probability >= SPARSE_FROM


def neuron_mask(
    begin: int, end: int, *, probability: float, name: str, step: int, seed: int, device: torch.device
) -> Tensor:
    """bool [end - begin]: which weights of the tensor's row-major order are updated."""
    if is_sparse(probability):
        return neuron_sparse(begin, end, probability=probability, name=name, step=step, seed=seed, device=device)
    return neuron_dense(begin, end, probability=probability, name=name, step=step, seed=seed, device=device)


def pair_thresholds(probability: float) -> tuple[int, int, int]:
    """48-bit thresholds p², p, 1 − (1 − p)²: where the joint outcome of a pair of weights changes.

    Below the first both weights stay; up to the second only the second is updated; up to the third only the first is;
    above it both are.
    """
    p, scale = Fraction(str(probability)), 1 << 48
    return round(p * p * scale), round(p * scale), round((2 * p - p * p) * scale)


def neuron_dense(
    begin: int, end: int, *, probability: float, name: str, step: int, seed: int, device: torch.device
) -> Tensor:
    """One draw of 16 bits per pair of weights (i, i + 8), and 32 more bits where they equal a threshold's upper 16.

    Weight i sits in chunk i // 128 at r = i % 128. It uses word r // 32, half (r // 16) % 2 of position 8·chunk + r % 8
    and is the pair's second when (r // 8) % 2. The 32 bits that break a tie are word r // 32 of position
    2·(8·chunk + r % 8) + half in the stream "neuron-tie".
    """
    first, last = begin // CHUNK, -(-end // CHUNK)
    position = torch.arange(first * LANES, last * LANES, device=device)
    words = torch.stack([w.view(-1, LANES) for w in philox(position, stream_tag("neuron", name), step, seed)], dim=1)
    halves = torch.stack([words & 0xFFFF, words >> 16], dim=2).to(torch.int32)  # [chunks, 4, 2, LANES]
    t_both, t_one, t_none = pair_thresholds(probability)
    above = [halves > (t >> 32) for t in (t_both, t_one, t_none)]
    tied = halves == (t_both >> 32)
    for t in (t_one, t_none):
        tied |= halves == (t >> 32)
    ties = tied.nonzero()
    if len(ties):
        chunk, word, half, lane = ties.unbind(1)
        extra = torch.stack(
            philox(2 * ((first + chunk) * LANES + lane) + half, stream_tag("neuron-tie", name), step, seed), dim=1
        )
        value = (halves[tuple(ties.T)].long() << 32) | extra.gather(1, word[:, None])[:, 0]
        for mask, t in zip(above, (t_both, t_one, t_none), strict=True):
            mask[tuple(ties.T)] = value >= t
    ge_both, ge_one, ge_none = above
    updated = torch.stack([ge_one, ge_both ^ ge_one ^ ge_none], dim=3)  # [chunks, 4, 2, 2, LANES]: row-major weights
    return updated.view(-1)[begin - first * CHUNK : end - first * CHUNK]


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


def neuron_sparse(
    begin: int, end: int, *, probability: float, name: str, step: int, seed: int, device: torch.device
) -> Tensor:
    """Updated weights found by their gaps, for each block of 16,384 weights apart.

    Draw k of block b is word k % 4 of position 4096·b + k // 4 in the stream "neuron-gap". A word w gives the gap
    g = #{j : w < round(pʲ·2³²), 1 ≤ j ≤ 1024}. A gap below 1024 skips g weights and updates the next; one of 1024 skips
    1024 weights and draws again.
    """
    first, last = begin // BLOCK, -(-end // BLOCK)
    mask = torch.zeros((last - first) * BLOCK, dtype=torch.bool, device=device)
    ascending = torch.tensor(gap_thresholds(probability)[::-1], device=device)
    tag = stream_tag("neuron-gap", name)
    blocks = torch.arange(first, last, device=device)
    offset = torch.zeros(last - first, dtype=torch.int64, device=device)  # next undecided weight of each block
    calls = min(
        DRAWS_PER_BLOCK, int(BLOCK * (1 - probability)) // 4 + 8
    )  # Philox calls a round: about what a block needs
    for start in range(0, DRAWS_PER_BLOCK, calls):
        position = blocks[:, None] * DRAWS_PER_BLOCK + torch.arange(start, start + calls, device=device)
        words = torch.stack(philox(position, tag, step, seed), dim=-1).view(len(blocks), -1)
        gap = NUM_GAPS - torch.searchsorted(ascending, words, right=True)
        advance = torch.where(gap < NUM_GAPS, gap + 1, gap)
        reached = offset[:, None] + advance.cumsum(1)
        hit = (gap < NUM_GAPS) & (reached <= BLOCK)
        mask[((blocks - first)[:, None] * BLOCK + reached - 1)[hit]] = True
        offset = reached[:, -1]
        if bool((offset >= BLOCK).all()):
            break
    return mask[begin - first * BLOCK : end - first * BLOCK]
