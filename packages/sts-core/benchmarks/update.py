"""How long a teacher update takes, against the incumbents, in one process and interleaved.

    ci/bench core                                  both networks, tables into docs/speed.md
    ci/bench core --network ViT-B/16 --rounds 12   one network, the other's table stays
    ci/bench core --rounds 10 --repeats 1 --dry    a quick look, nothing is written

Every figure is a ratio to the temporal moving average by `torch._foreach_lerp_` on the same network in the same run:
CPU time of one thread, least of many rounds; LW and module updates touch a random part of the tensors, so for them the
mean over all rounds is what counts. All is repeated three times: the table has the median of the three ratios, and the
lowest and the highest in brackets. Before each case the caches are filled with something else, as a training step
does: no case finds weights that another one has just read.

`limit` is the traffic that an update cannot avoid, as a share of the moving average's: the cache lines of 16 weights
that it has to touch. `x limit` is how many times longer the update takes than that traffic at the bandwidth of
`a.add_(b)`, which reads and writes as much, on tensors larger than any cache. `memory` is what an update takes for a
while, beyond the teacher.

A second table has what can be reached on this machine: the lines of one very update, counted, and the time that a loop
over just these lines takes, the faster of two (lines.py), beside the aim and the update.
"""

import argparse
import copy
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from statistics import mean, median

import timm
import torch
from ema_pytorch import EMA
from lightly.models.utils import update_momentum
from lines import BYTES_PER_LINE, WEIGHTS_PER_LINE, Lines
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.profiler import ProfilerActivity, profile

from sts_core import Smoother, SmoothingConfig, TeacherBank, make_teacher, temporal_moving_average

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
BASE = "TMA, `torch._foreach_lerp_`"
EVICTED_FLOATS = 1 << 26  # 256 MB, more than the last cache of one core complex
NETWORKS = {"ResNet-50": "resnet50", "ViT-B/16": "vit_base_patch16_224"}
GRANULARITIES = {"LW": "layer", "module": "module", "CW": "channel", "NW": "neuron"}
PROBABILITIES = (0.5, 0.7, 0.9, 0.99, 0.999)
ALL_LINES, ONE_LAYER, BANK = "sts-core, p=0, m=0.99", "sts-core, p=1, a network of one layer", 8
AIMS = {ALL_LINES: 1.0, "sts-core, p=1: only the checks before an update": 0.02}
AIMS |= {f"sts-core CW p={p}, m=0.99": aim for p, aim in ((0.5, 0.65), (0.7, 0.45), (0.9, 0.2), (0.99, 0.06))}
AIMS |= {
    f"sts-core NW p={p}, m=0.99": aim for p, aim in ((0.5, 1.1), (0.7, 1.1), (0.9, 1.1), (0.99, 0.55), (0.999, 0.15))
}
AIMS |= {f"sts-core NW p={p}, m=0.99, channels_last": 1.15 for p in PROBABILITIES}
AIMS["sts-core `TeacherBank` of 8 TMA teachers"] = 5.9
RUNS_AHEAD = (0, 16)  # how far the loops over lines call for memory in advance
Case = Callable[[], object]


def naive(student: nn.Module, teacher: nn.Module, p: float, granularity: str) -> Case:
    """The paper's pseudo-code with masks by torch.rand and torch.where."""
    pairs = [(s.detach(), t.detach()) for s, t in zip(student.parameters(), teacher.parameters(), strict=True)]

    def shape(t: Tensor) -> tuple[int, ...]:
        return tuple(t.shape) if granularity == "neuron" else (t.shape[0], *[1] * (t.dim() - 1))

    def update() -> None:
        for s, t in pairs:
            average = 0.99 * t + 0.01 * s
            t.copy_(torch.where(torch.rand(shape(t)) < p, t, average) if p else average)

    return update


def incumbents(student: nn.Module) -> dict[str, Case]:
    foreach = [p.detach() for p in make_teacher(student).parameters()]
    weights = [p.detach() for p in student.parameters()]
    averaged = AveragedModel(student, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    averaged.n_averaged.fill_(1)
    timms = ModelEmaV3(student, decay=0.99)
    lucid = EMA(student, beta=0.99, update_after_step=0, update_every=1, min_value=0.99, use_foreach=True)
    lucid.initted.fill_(True)
    lucid.step.fill_(10_000)
    other = make_teacher(student)
    return {
        BASE: lambda: torch._foreach_lerp_(foreach, weights, 0.01),
        "TMA, the paper's loop": naive(student, make_teacher(student), 0.0, "layer"),
        "TMA, `AveragedModel`": lambda: averaged.update_parameters(student),
        f"TMA, timm {version('timm')} `ModelEmaV3`": lambda: timms.update(student),
        f"TMA, ema-pytorch {version('ema-pytorch')}": lucid.update,
        f"TMA, lightly {version('lightly')} `update_momentum`": lambda: update_momentum(student, other, 0.99),
        "CW p=.7, rand + where": naive(student, make_teacher(student), 0.7, "channel"),
        "NW p=.7, rand + where": naive(student, make_teacher(student), 0.7, "neuron"),
    }


def ours(student: nn.Module, momentum: float, backend: str) -> dict[str, Case]:
    teacher = make_teacher(student)  # one for all, cold for each: 50 copies of a ViT-B would fill the memory

    def case(p: float, granularity: str) -> Case:
        config = SmoothingConfig(momentum=momentum, preserve_probability=p, granularity=granularity, buffers="keep")
        return Smoother(student=student, teacher=teacher, config=config, seed=0, backend=backend).update

    if backend == "reference":
        chosen = [("LW", 0.7), ("CW", 0.7), ("NW", 0.7), ("NW", 0.99)]
        return {f"without a compiler, {label} p={p}": case(p, GRANULARITIES[label]) for label, p in chosen}
    cases = {f"sts-core, p=0, m={momentum}": case(0.0, "layer")}
    if momentum:
        cases["sts-core, p=1: only the checks before an update"] = partial(case(0.0, "layer"), preserve_probability=1.0)
        tiny = nn.Linear(1, 1)  # calling costs something where Python's own code has left the caches, too
        config = temporal_moving_average(momentum)
        one = Smoother(student=tiny, teacher=make_teacher(tiny), config=config, seed=0)
        cases[ONE_LAYER] = partial(one.update, preserve_probability=1.0)
    for label, granularity in GRANULARITIES.items():
        for p in PROBABILITIES:
            cases[f"sts-core {label} p={p}, m={momentum}"] = case(p, granularity)
    return cases


def channels_last(student: nn.Module) -> dict[str, Case]:
    """Masks are drawn in row-major order, so weights that lie otherwise need theirs transposed."""
    student = copy.deepcopy(student).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return {f"{name}, channels_last": case for name, case in ours(student, 0.99, "auto").items() if "NW" in name}


def bank(student: nn.Module) -> dict[str, Case]:
    configs = {str(k): temporal_moving_average(0.99 + k / 1000, buffers="keep") for k in range(BANK)}
    return {"sts-core `TeacherBank` of 8 TMA teachers": TeacherBank(student=student, configs=configs, seed=0).update}


def lines_of(cases: dict[str, Case]) -> dict[str, Lines]:
    """By the names of cases with an aim: the lines that they touch."""
    smoothers = {name: getattr(cases[name], "__self__", None) for name in AIMS}
    return {name: Lines(smoother) for name, smoother in smoothers.items() if isinstance(smoother, Smoother)}


def loop_name(name: str, ahead: int) -> str:
    return f"lines of {name}, {ahead} runs ahead"


def measure(cases: dict[str, Case], rounds: int, slow: int) -> dict[str, list[float]]:
    """CPU seconds of every case in every round; the slow ones join in every `slow`-th only."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    evicted = torch.zeros(EVICTED_FLOATS)
    for turn in range(rounds):
        for name, case in cases.items():
            if turn and turn % slow and min(times[name]) > 5 * min(times[next(iter(cases))]):
                continue
            evicted.add_(1.0)
            start = time.process_time()
            case()
            times[name].append(time.process_time() - start)
        print(f"\r  round {turn + 1} of {rounds}", end="", flush=True)
    print()
    return times


def memory(case: Case) -> str:
    """The most that torch's allocator gives out while the case runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        case()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return f"{max(0, *accumulate(sizes, initial=0)) / 2**20:.0f} MiB"


def bandwidth() -> float:
    """Bytes per second of an addition in place: two tensors are read, one is written."""
    a, b = torch.zeros(EVICTED_FLOATS), torch.zeros(EVICTED_FLOATS)
    taken = []
    for _ in range(10):
        start = time.process_time()
        a.add_(b)
        taken.append(time.process_time() - start)
    return 3 * 4 * EVICTED_FLOATS / min(taken)


def seconds(name: str, taken: list[float]) -> float:
    return mean(taken) if "LW" in name or "module" in name else min(taken)


def limit(name: str) -> float:
    """The ratio that traffic alone would give: TMA reads student and teacher and writes the teacher."""
    if "TeacherBank" in name:
        return (1 + 2 * BANK) / 3
    if "p=1" in name:
        return 0.0
    found = re.search(r"(LW|module|CW|NW) p=(\.?\d[\d.]*)", name)
    if found is None:
        return 1.0
    p = float(found[2])
    return 1 - (p**WEIGHTS_PER_LINE if found[1] == "NW" else p)


@dataclass
class Results:
    """What was measured with one network."""

    num_weights: int
    repeats: list[dict[str, list[float]]]
    memory: dict[str, str]
    lines: dict[str, Lines]

    def ratio(self, name: str) -> float:
        return median(seconds(name, times[name]) / seconds(name, times[BASE]) for times in self.repeats)

    def reachable(self, name: str) -> str:
        """A row of the second table."""
        cells = f"| {name} | {AIMS[name]:.2f} | {self.ratio(name):.2f} |"
        if "p=1" in name:
            return f"{cells} - | - | - | {self.ratio(ONE_LAYER):.2f} (of one layer) |"
        is_bank = name not in self.lines
        counted = ALL_LINES if is_bank else name
        loop = min((loop_name(counted, ahead) for ahead in RUNS_AHEAD), key=self.ratio)
        taken = median(min(times[loop]) for times in self.repeats)
        moved = self.lines[counted].num_lines * BYTES_PER_LINE
        times = (1 + 2 * BANK) / 3 if is_bank else 1  # a bank reads the student once
        count = self.lines[counted].num_lines * (BANK if is_bank else 1)
        return (
            f"{cells} {count:,} | {times * moved / 1e6:.1f} | {moved / taken / 1e9:.0f} | "
            f"{times * self.ratio(loop):.2f} |"
        )

    def cells(self, name: str, bytes_per_second: float) -> str:
        ratios = sorted(seconds(name, times[name]) / seconds(name, times[BASE]) for times in self.repeats)
        traffic = limit(name) * 3 * 4 * self.num_weights / bytes_per_second
        taken = median(seconds(name, times[name]) for times in self.repeats)
        beyond = f"{taken / traffic:.1f}" if traffic else "-"
        return f"{median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f}) | {beyond} | {self.memory[name]}"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    name = names[0] if names else platform.machine()
    return f"{name} ({capability}), one thread, torch {torch.__version__.split('+')[0]}"


def table(network: str, result: Results, rounds: int, bytes_per_second: float) -> str:
    lines = [
        f"{network} on {machine()}: CPU time as a ratio to `torch._foreach_lerp_`, least of {rounds} rounds (LW and "
        f"module: mean), each case with cold caches; median (lowest and highest) of {len(result.repeats)} repeats. A "
        f"core reads and writes {bytes_per_second / 1e9:.0f} GB/s; the machine's load was {os.getloadavg()[1]:.0f}.",
        "",
        "| update | limit | ratio | x limit | memory |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {name} | {limit(name):.2f} | {result.cells(name, bytes_per_second)} |" for name in result.memory]
    lines += [
        "",
        "| update | aim | measured | teacher's lines | MB moved | GB/s of such lines | these lines alone |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join(lines + [result.reachable(name) for name in AIMS])


def write(text: str, path: Path, mark: str) -> None:
    """Put the text between the file's two marks."""
    begin, end = f"<!-- bench:{mark} -->", f"<!-- /bench:{mark} -->"
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slow", type=int, default=6, help="every so many rounds for slow cases")
    parser.add_argument("--network", choices=list(NETWORKS), help="one network only")
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for label, name in NETWORKS.items():
        if arguments.network not in (None, label):
            continue
        print(label)
        student = timm.create_model(name)
        cases = {
            **incumbents(student),
            **ours(student, 0.99, "auto"),
            **channels_last(student),
            **bank(student),
            **ours(student, 0.99, "reference"),
        }
        lines = lines_of(cases)
        loops = {loop_name(k, ahead): partial(v, ahead) for k, v in lines.items() for ahead in RUNS_AHEAD}
        taken = [measure(cases | loops, arguments.rounds, arguments.slow) for _ in range(arguments.repeats)]
        num_weights = sum(p.numel() for p in student.parameters())
        result = Results(num_weights, taken, {name: memory(case) for name, case in cases.items()}, lines)
        text = table(label, result, arguments.rounds, bandwidth())
        print(text)
        if not arguments.dry:
            write(text, PAGE, f"core {label}")


if __name__ == "__main__":
    main()
