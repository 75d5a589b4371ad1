"""Twelve questions to an average. Each is a short training, compared with its average in float64."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from tests.core.conformance.training import Case, Host, Net, State, Trained, snapshot

OK, PARTLY, BREAKS, NOT_OFFERED = "ok", "partly", "breaks", "not offered"


class Cell(NamedTuple):
    """What became of a host at a probe."""

    verdict: str
    remark: str = ""


def expected(host: Host, case: Case, history: list[State], name: str, *, times: int = 1) -> Tensor:
    """The moving average of a tensor over the steps; with `times` each step is made so often."""
    average = history[0][name].double()
    for number, state in enumerate(history[1:]):
        kept = 0.0 if host.copies_first and number == 0 else case.momentum**times
        average = kept * average + (1 - kept) * state[name].double()
    return average


def far(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-5)


def plain_name(name: str) -> str:
    return re.sub(r"_orig_mod\.|module\.", "", name)


def values(host: Host, case: Case, trained: Trained) -> str:
    """What is wrong with the averages of the parameters; empty if nothing is."""
    average = {plain_name(name): tensor for name, tensor in trained.average.items()}
    for name in (name for name, _ in case.student().named_parameters(remove_duplicate=False)):
        tensor, should = average[name], expected(host, case, trained.history, name)
        if far(tensor, should):
            if not far(tensor, trained.history[0][name]):
                return f"`{name}` has not moved"
            if not far(tensor, expected(host, case, trained.history, name, times=2)):
                return f"`{name}` moves twice in a step"
            return f"`{name}` is {float((tensor - should).abs().max()):.2g} away from its average"
    return ""


def ties(host: Host, folder: Path) -> Cell:
    def student() -> Net:
        net = Net()
        net.head.weight = net.body[0].weight
        return net

    case = Case(student=student)
    trained = host.train(case)
    if wrong := values(host, case, trained):
        return Cell(BREAKS, wrong)
    tied = trained.average["head.weight"] is trained.average["body.0.weight"]
    return Cell(OK) if tied else Cell(BREAKS, "the average has the tied weight twice")


def buffers(host: Host, folder: Path) -> Cell:
    case = Case()
    trained = host.train(case)
    name = "norm.running_mean"
    own, last, first = trained.average[name], trained.history[-1][name], trained.history[0][name]
    if host.without_buffers:
        return Cell(NOT_OFFERED, host.without_buffers)
    if not far(own, last):
        return Cell(OK, "the student's")
    if not far(own, expected(host, case, trained.history, name)):
        return Cell(OK, "averaged")
    return Cell(BREAKS, f"`{name}` stays as it was" if not far(own, first) else f"`{name}` is neither")


class Counting(Net):
    """Has a counter and a mask, which change."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.tensor(0))
        self.register_buffer("mask", torch.zeros(8, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(len(x))
            self.mask.logical_or_(torch.arange(8) < self.seen // 16)
        return super().forward(x)


def integer_buffers(host: Host, folder: Path) -> Cell:
    trained = host.train(Case(student=Counting))
    if host.without_buffers:
        return Cell(NOT_OFFERED, host.without_buffers)
    own, last = ({k: t[k].tolist() for k in ("seen", "mask")} for t in (trained.average, trained.history[-1]))
    if own == last:
        return Cell(OK)
    what = f"a counter is {own['seen']}, the student's {last['seen']}"
    return Cell(BREAKS, what if own["mask"] == last["mask"] else f"{what}, and a mask is another")


def frozen(host: Host, folder: Path) -> Cell:
    def thaw(step: int, student: Net, optimizer: Any) -> None:
        student.head.requires_grad_(step >= 2)

    case = Case(change=thaw)
    wrong = values(host, case, host.train(case))
    return Cell(BREAKS, wrong) if wrong else Cell(OK)


def bf16(host: Host, folder: Path) -> Cell:
    """How far the average moves of what it should, in the direction of what it should."""
    case = Case(student=lambda: Net(64).bfloat16(), momentum=0.999, steps=60)
    trained = host.train(case)
    names = [name for name, _ in Net().named_parameters()]

    def flat(pick: Callable[[str], Tensor]) -> Tensor:
        return torch.cat([pick(name).double().flatten() for name in names])

    start = flat(lambda name: trained.history[1 if host.copies_first else 0][name])
    way = flat(lambda name: expected(host, case, trained.history, name)) - start
    gone = flat(lambda name: trained.average[name]) - start
    share, noise = float(gone @ way / (way @ way)), float((gone - way).norm() / way.norm())
    kept = str(trained.average["head.weight"].dtype).removeprefix("torch.")
    if abs(share - 1) < 0.1:
        noisy = f"kept in {kept}, {noise:.1f} of the way in noise" if noise > 0.1 else ""
        return Cell(OK, noisy or "kept in float32" * (kept == "float32"))
    return Cell(BREAKS, f"kept in {kept}: goes {share:.0%} of the way at m = .999")


def compiled(host: Host, folder: Path) -> Cell:
    return wrapped(host, lambda student: torch.compile(student, backend="eager"))  # type: ignore[return-value]


def ddp(host: Host, folder: Path) -> Cell:
    return wrapped(host, nn.parallel.DistributedDataParallel, lambda: {"strategy": "ddp", "devices": _world_size()})


def fsdp2(host: Host, folder: Path) -> Cell:
    mesh = DeviceMesh("cpu", list(range(_world_size())))

    def cut(student: nn.Module) -> nn.Module:
        fully_shard(student.body, mesh=mesh)
        return fully_shard(student, mesh=mesh)

    def strategy() -> dict[str, Any]:
        from lightning.pytorch.strategies import ModelParallelStrategy

        parallel = ModelParallelStrategy(data_parallel_size=_world_size(), tensor_parallel_size=1)
        return {"strategy": parallel, "devices": _world_size()}

    verdict, remark = wrapped(host, cut, strategy, lambda: Net(7))
    return Cell(NOT_OFFERED, f"{host.without_shards}: {remark}") if host.without_shards else Cell(verdict, remark)


def wrapped(
    host: Host, wrap: Any, strategy: Callable[[], dict[str, Any]] = dict, student: Callable[[], Net] = Net
) -> Cell:
    """The average of a wrapped student; where that is not right, one that was made at the other side of wrapping."""
    orders = (True, False) if host.made_early else (False, True)
    cases = [Case(student=student, wrap=wrap, strategy=strategy, early=early, rank=_rank()) for early in orders]
    one = _wrong(host, cases[0])
    if not one:
        return Cell(OK, "made before wrapping" if host.made_early else "")
    if type(host).train is not Host.train:
        return Cell(BREAKS, one)
    other, place = _wrong(host, cases[1]), "before" if cases[1].early else "after"
    if not other:
        return Cell(PARTLY, f"{one}; right if made {place} wrapping")
    return Cell(BREAKS, one if other == one else f"{one}; made {place} wrapping: {other}")


def _rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def _world_size() -> int:
    return distributed.get_world_size()


def _wrong(host: Host, case: Case) -> str:
    """What is wrong on any rank, the same on all of them."""
    mine = _wrong_here(host, case)
    if not distributed.is_initialized():
        return mine
    all_of_them: list[Any] = [None] * _world_size()
    distributed.all_gather_object(all_of_them, mine)
    return next(filter(None, all_of_them), "")


def _wrong_here(host: Host, case: Case) -> str:
    try:
        trained = host.train(case)
        if wrong := values(host, case, trained):
            return wrong
        assert trained.module is not None
        x, plain = case.student().batch(99), case.student().eval()
        with torch.no_grad():
            output = trained.module.eval()(x)
            weights = {plain_name(name): value for name, value in snapshot(trained.module).items()}
            plain.load_state_dict(weights)
            if far(output, plain(x)):
                return "it does not compute with its weights"
    except (Exception, SystemExit) as error:
        return said(error)
    names = sorted({name.removesuffix(plain_name(name)) for name in trained.average} - {""})
    return f"its names begin with `{names[0]}`" if names else ""


def said(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "it ends the process by exit()"
    sentence = re.split(r"(?<=\w)[.:;!] |\n", str(error).strip())[0].rstrip(".!")
    return f"{type(error).__name__} ({sentence})" if sentence else type(error).__name__


def accumulation(host: Host, folder: Path) -> Cell:
    if not host.follows_optimizers:
        return Cell(NOT_OFFERED, "the loop calls it after the optimizer's steps")
    case = Case(accumulate=2)
    trained = host.train(case)
    wrong = values(host, case, trained)
    return Cell(BREAKS, wrong) if wrong else Cell(OK, "by itself")


def resume(host: Host, folder: Path) -> Cell:
    straight = host.train(Case(folder=folder / "straight")).average
    (folder / "cut").mkdir(parents=True, exist_ok=True)
    resumed = host.train(Case(resume_after=2, folder=folder / "cut")).average
    wrong = [name for name in straight if not torch.equal(straight[name], resumed[name])]
    return Cell(BREAKS, f"{len(wrong)} of {len(straight)} tensors are others") if wrong else Cell(OK, "to the bit")


def added_parameters(host: Host, folder: Path) -> Cell:
    """A layer more after two steps, at the end or in the middle."""

    def grow(where: Callable[[Net], nn.Sequential]) -> Callable[[int, Net, torch.optim.Optimizer], None]:
        def change(step: int, student: Net, optimizer: torch.optim.Optimizer) -> None:
            if step == 2:
                layer = nn.Linear(8, 8)
                where(student).append(layer)
                optimizer.add_param_group({"params": list(layer.parameters())})

        return change

    def tail(student: Net) -> nn.Sequential:
        student.add_module("tail", nn.Sequential())
        return student.tail  # type: ignore[return-value]

    remarks = {}
    for place, where in (("at the end", tail), ("in the middle", lambda student: student.body)):
        case = Case(change=grow(where))
        try:
            trained = host.train(case)
        except Exception as error:
            remarks[place] = f"refused: {said(error)}"
            continue
        remarks[place] = f"silently {values(host, case, trained) or 'left out'}"
    if any(remark.startswith("silently") for remark in remarks.values()):
        return Cell(BREAKS, "; ".join(f"a layer {place}: {remark}" for place, remark in remarks.items()))
    return Cell(OK, remarks["in the middle"])


class Images(Net):
    """With a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def batch(self, step: int, rank: int = 0) -> Tensor:
        return torch.randn(16, 4, 5, 5, generator=torch.Generator().manual_seed(step))


def channels_last(host: Host, folder: Path) -> Cell:
    """From the beginning, and from the second step on."""

    def turned() -> Net:
        return Images().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def turn(step: int, student: Net, optimizer: Any) -> None:
        if step == 1:
            student.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    for case in (Case(student=turned), Case(student=Images, change=turn)):
        if wrong := values(host, case, host.train(case)):
            return Cell(BREAKS, wrong)
    return Cell(OK)


PROBES: dict[str, Callable[[Host, Path], Cell]] = {
    "tied weights": ties,
    "buffers": buffers,
    "integer buffers": integer_buffers,
    "frozen parameters": frozen,
    "bf16 students": bf16,
    "torch.compile": compiled,
    "DDP": ddp,
    "FSDP2": fsdp2,
    "accumulation": accumulation,
    "resume": resume,
    "added parameters": added_parameters,
    "channels_last": channels_last,
}
BY_RANKS = ("DDP", "FSDP2")


def probe(host: type[Host], name: str, folder: Path) -> Cell:
    """A cell of the table: by default, and where that breaks with the option that the package offers."""
    cell = _tried(host(), name, folder / host.title / name)
    if cell.verdict != BREAKS or name not in host.options:
        return cell
    other = host()
    other.column = name
    verdict, remark = _tried(other, name, folder / host.title / f"{name}, with the option")
    if verdict != OK:
        return cell
    return Cell(PARTLY, f"{cell.remark}; right with `{host.options[name]}`{remark and f', {remark}'}")


def _tried(host: Host, name: str, folder: Path) -> Cell:
    """An error that the probe does not expect is a verdict, too."""
    try:
        return PROBES[name](host, folder)
    except (Exception, SystemExit) as error:
        return Cell(BREAKS, said(error))
