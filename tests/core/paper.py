"""The paper's pseudo-code in plain Python numbers, and the draws that it is fed with, one unit at a time.

Nothing here comes from sts_core: the generator, the meaning of its bits and the loop are written a second time, from
the description of the draws, so that the two can disagree.
"""

from fractions import Fraction
from hashlib import blake2b

import torch
from torch import Tensor, nn

MASK = 0xFFFFFFFF


def philox(position: int, tag: int, step: int, seed: int) -> list[int]:
    """Philox4x32-10 on Python integers."""
    c = [position & MASK, tag & MASK, tag >> 32, step & MASK]
    k = [seed & MASK, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def tag_of(kind: str, name: str) -> int:
    return int.from_bytes(blake2b(f"{kind}:{name}".encode(), digest_size=8).digest(), "little")


class PaperDraws:
    """Whether a unit is preserved, by the description of the draws."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def unit(self, kind: str, name: str, index: int, step: int, p: float) -> bool:
        word = philox(index // 4, tag_of(kind, name), step, self.seed)[index % 4]
        return word < round(Fraction(str(p)) * 2**32)

    def neurons(self, name: str, size: int, step: int, p: float) -> list[bool]:
        return self._by_gaps(name, size, step, p) if p >= 0.97 else self._by_pairs(name, size, step, p)

    def _by_pairs(self, name: str, size: int, step: int, p: float) -> list[bool]:
        q = Fraction(str(p))
        t = [round(x * 2**48) for x in (q * q, q, 2 * q - q * q)]
        preserved = []
        for i in range(size):
            chunk, r = divmod(i, 128)
            word, half, second, lane = r // 32, (r // 16) % 2, (r // 8) % 2, r % 8
            bits = (philox(8 * chunk + lane, tag_of("neuron", name), step, self.seed)[word] >> (16 * half)) & 0xFFFF
            extra = philox(2 * (8 * chunk + lane) + half, tag_of("neuron-tie", name), step, self.seed)[word]
            value = (bits << 32) | extra
            outcome = sum(value >= x for x in t)  # 0: both stay, 1: second moves, 2: first moves, 3: both move
            preserved.append(outcome not in ((1, 3) if second else (2, 3)))
        return preserved

    def _by_gaps(self, name: str, size: int, step: int, p: float) -> list[bool]:
        q = Fraction(str(p))
        thresholds = [round(q**g * 2**32) for g in range(1, 1025)]
        preserved = [True] * size
        for begin in range(0, size, 16384):
            i, k = begin, 0
            while i < min(size, begin + 16384):
                words = philox(4096 * (begin // 16384) + k // 4, tag_of("neuron-gap", name), step, self.seed)
                gap = sum(words[k % 4] < t for t in thresholds)
                k += 1
                i += gap
                if gap < 1024:
                    if i < min(size, begin + 16384):
                        preserved[i] = False
                    i += 1
        return preserved


def paper_update(
    student: nn.Module, teacher: nn.Module, draws: PaperDraws, *, m: float, p: float, granularity: str, step: int
) -> None:
    """`for s, t in zip(params_s, params_t): if rand() < p: continue; else: t = m·t + (1 − m)·s`, unit by unit."""
    for (name, s), t in zip(student.named_parameters(), teacher.parameters(), strict=True):
        t.data = _updated(s.detach(), t.detach(), _preserved(name, t, draws, p, granularity, step), m)


def _preserved(name: str, t: Tensor, draws: PaperDraws, p: float, granularity: str, step: int) -> Tensor:
    """bool of the tensor's shape."""
    if p in (0.0, 1.0):
        return torch.full(t.shape, p == 1.0)
    if granularity == "layer":
        return torch.full(t.shape, draws.unit("layer", name, 0, step, p))
    if granularity == "module":
        return torch.full(t.shape, draws.unit("module", name.rpartition(".")[0], 0, step, p))
    if granularity == "channel":
        rows = t.shape[0] if t.dim() else 1
        kept = torch.tensor([draws.unit("channel", name, row, step, p) for row in range(rows)], dtype=torch.bool)
        return kept.view(-1, *[1] * (t.dim() - 1)).expand(t.shape) if t.dim() else kept.view(())
    return torch.tensor(draws.neurons(name, t.numel(), step, p), dtype=torch.bool).view(t.shape)


def _updated(s: Tensor, t: Tensor, preserved: Tensor, m: float) -> Tensor:
    average = (m * t.double() + (1 - m) * s.double()).float()
    return torch.where(preserved, t, average)
