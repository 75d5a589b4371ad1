"""python -m tests.null_gpu.run_offload: teachers in the host's memory of students on a null GPU.

Copies are real there, so each teacher must be, bit for bit, the one that the same student has on the CPU. Prints by
case whether it is, and what travelled.
"""

import copy
import json
import pickle
from typing import Any

import torch
from torch import Tensor, nn

from sts_core import ConfigError, Smoother, SmoothingConfig, TeacherBank, make_teacher
from tests.null_gpu.counters import counted

STEPS = 12
CASES: dict[str, dict[str, Any]] = {
    "layer": {"granularity": "layer"},
    "module": {"granularity": "module"},
    "channel": {"granularity": "channel"},
    "neuron": {"granularity": "neuron"},
    "sparse neurons": {"granularity": "neuron", "preserve_probability": 0.98},
    "average": {"preserve_probability": 0.0},
    "momentum 1": {"momentum": 1.0},
    "smooth buffers": {"buffers": "smooth"},
    "own buffers": {"buffers": "keep"},
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10)) for _ in range(24))
        self.head = nn.Linear(30, 9)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def config(case: str) -> SmoothingConfig:
    return SmoothingConfig(**({"momentum": 0.9, "preserve_probability": 0.7} | CASES[case]))


def train(step: int, *students: nn.Module) -> None:
    """Give parameters and buffers the values that training would, since nothing computes here."""
    for student in students:
        draw = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for tensor in student.state_dict().values():
                value = torch.randn(tensor.shape, generator=draw).abs()
                tensor.copy_(value if tensor.is_floating_point() else torch.tensor(step + 1))


def bits(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers as they lie in memory now, without a state dict's hooks."""
    return [tensor.detach().cpu().clone() for tensor in (*module.parameters(), *module.buffers())]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def sizes(student: nn.Module) -> list[int]:
    return [tensor.numel() * tensor.element_size() for tensor in (*student.parameters(), *student.buffers())]


def follow(case: str, *, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, Any]:
    """A Smoother on the null GPU beside its twin on the CPU."""
    student, twin = Net().to(dtype), Net().to(dtype)
    teacher, expected = make_teacher(student.cuda(), device="cpu"), make_teacher(twin)
    if options.get("stochastic_rounding"):
        teacher, expected = teacher.bfloat16(), expected.bfloat16()
    smoother = Smoother(student=student, teacher=teacher, config=config(case), seed=3, **options)
    options.pop("deferred", None)
    beside = Smoother(student=twin, teacher=expected, config=config(case), seed=3, **options)
    same, moved, counts = [], 0, {}
    for step in range(STEPS):
        train(step, student, twin)
        before = bits(expected)
        beside.update()
        changes = zip(sizes(student), before, bits(expected), strict=True)
        moved += sum(size for size, old, new in changes if not torch.equal(old, new))
        with counted(counts, str(step)):
            smoother.update()
        if step % 3 == 2:  # reading a teacher finishes its update
            same.append(equal(bits(smoother.teacher), bits(expected)))
    steps = list(counts.values())
    return {
        "same": all(same),
        "bytes": sum(c["copied_bytes"] for c in steps),
        "moved": moved,
        "whole": STEPS * sum(sizes(student)),
        "pageable copies": sum(c["pageable_copies"] for c in steps),
        "waits": sorted({c["syncs"] for c in steps[1:]}),
        "operations": sum(c["operations"] for c in steps),
        "allocations": sum(c["allocations"] + c["kinds"].get("host_malloc", 0) for c in steps[1:]),
    }


def bank(deferred: bool) -> dict[str, Any]:
    """Many teachers of one student, whose weights travel once for all of them."""
    configs = {case: config(case) for case in CASES}
    student, twin = Net().cuda(), Net()
    offloaded = TeacherBank(student=student, configs=configs, seed=3, device="cpu", deferred=deferred)
    expected = TeacherBank(student=twin, configs=configs, seed=3)
    counts: dict[str, Any] = {}
    for step in range(3):
        train(step, student, twin)
        expected.update()
        with counted(counts, str(step)):
            offloaded.update()
    same = [equal(bits(offloaded.teachers[case]), bits(expected.teachers[case])) for case in CASES]
    parameters = sum(4 * tensor.numel() for tensor in student.parameters())
    return {"same": all(same), "bytes": counts["2"]["copied_bytes"], "parameters": parameters}


class Deferred:
    """A student on the GPU after two updates, the second still under way, and what its teacher should be."""

    def __init__(self) -> None:
        self.student, twin = Net().cuda(), Net()
        rule = SmoothingConfig(momentum=0.5, preserve_probability=0.5, granularity="neuron")
        self.teacher = make_teacher(self.student, device="cpu")
        self.smoother = Smoother(student=self.student, teacher=self.teacher, config=rule, seed=3, deferred=True)
        beside = Smoother(student=twin, teacher=make_teacher(twin), config=rule, seed=3)
        train(0, self.student, twin)
        self.smoother.update()
        beside.update()
        self.before = bits(beside.teacher)
        train(1, self.student, twin)
        self.smoother.update()
        beside.update()
        self.after = bits(beside.teacher)
        train(2, self.student)  # what travels was read before

    def is_finished(self) -> bool:
        return equal(bits(self.teacher), self.after)


def reading() -> dict[str, bool]:
    """Which ways to read a teacher find the last update."""
    case = Deferred()
    found = {"kept parameters are those before": equal(bits(case.teacher), case.before)}
    with case.smoother.swapped():
        found["swapped"] = equal(bits(case.student), case.after)
    for name, read in {
        "state dict": lambda case: case.teacher.state_dict(),
        "call": lambda case: case.teacher(torch.ones(1)),
        "attribute": lambda case: case.smoother.teacher,
        "finish": lambda case: case.smoother.finish(),
    }.items():
        case = Deferred()
        read(case)
        found[name] = case.is_finished()
    return found


def meddling() -> dict[str, bool]:
    """What may happen to a teacher whose last update is still under way."""
    found = {}
    case = Deferred()
    for tensor in case.teacher.parameters():
        tensor.data = tensor.data.clone()
    case.smoother.finish()
    found["memory that moves"] = case.is_finished()
    case = Deferred()
    case.teacher.load_state_dict({name: torch.zeros_like(value) for name, value in Net().state_dict().items()})
    case.smoother.finish()
    found["loaded weights stay"] = not any(tensor.any() for tensor in bits(case.teacher))
    case = Deferred()
    for part in case.student.modules():
        for name, buffer in list(part.named_buffers(recurse=False)):
            setattr(part, name, buffer + 0)
    kept = {name: buffer.cpu() for name, buffer in case.student.named_buffers()}
    case.smoother.update()
    found["buffers that are replaced"] = all(
        torch.equal(buffer, kept[name]) for name, buffer in case.smoother.teacher.named_buffers()
    )
    case = Deferred()
    case.smoother.finish()
    case.smoother.update(skip=torch.ones(()).to("cuda"))  # a copy: the null GPU does not fill memory
    case.smoother.finish()
    parameters = len(list(case.teacher.parameters()))
    found["a skipped update"] = equal(bits(case.teacher)[:parameters], case.after[:parameters])
    case = Deferred()
    copies = [copy.deepcopy(case.smoother.teacher), pickle.loads(pickle.dumps(case.teacher))]  # noqa: S301 - our own
    case.smoother.update()
    found["copies go their own way"] = all(equal(bits(one), case.after) for one in copies)
    return found


def refusal() -> str:
    student = Net().cuda()
    try:
        Smoother(student=student, teacher=make_teacher(student), config=config("layer"), seed=0, deferred=True)
    except ConfigError as error:
        return str(error)
    return ""


def memory() -> int:
    """Bytes on the device that making a teacher on the CPU takes at most."""
    student = Net().cuda()
    before = torch.cuda.memory_allocated()
    counts: dict[str, Any] = {}
    with counted(counts, "make"):
        make_teacher(student, device="cpu")
    return int(counts["make"]["peak_bytes"] - before)


def main() -> None:
    kinds = ("now", "deferred")
    cases = {f"{name}, {kind}": follow(name, deferred=kind == "deferred") for name in CASES for kind in kinds}
    cases["bfloat16 student"] = follow("layer", dtype=torch.bfloat16)
    cases["bfloat16 teacher"] = follow("layer", stochastic_rounding=True, deferred=True)
    cases["reference"] = follow("neuron", backend="reference")
    found = {"cases": cases, "banks": [bank(False), bank(True)], "reading": reading(), "meddling": meddling()}
    print(json.dumps(found | {"refusal": refusal(), "memory": memory()}))


if __name__ == "__main__":
    main()
