"""sts study: measure every claim of the paper that fits this machine, and write down what holds.

A study is a fixed list of trainings, of measurements and of claims, planned from a pilot before its first run
(plan.md). Each finished training is a line of results.jsonl in the output folder, so a stopped study resumes where it
was; README.md there has the verdicts, the figures and the tables. It runs in this process and its children, without
Ray.
"""

import argparse

EXAMPLES = """  sts study small --output results/small --processes 2
  sts study small --output results/small --report-only
  nice sts study medium --output results/medium --processes 2 --cifar10 cifar10.npz
  sts study noise --output results/noise

  cifar10.npz holds x_train, y_train, x_test, y_test (uint8 [N, 32, 32, 3] and classes), for example made by
    python -c "import numpy as np; from torchvision.datasets import CIFAR10; \\
      a, b = (CIFAR10('data', train=t, download=True) for t in (True, False)); \\
      np.savez('cifar10.npz', x_train=a.data, y_train=a.targets, x_test=b.data, y_test=b.targets)\""""
TAKES_OVERRIDES = False
STUDIES = ("small", "medium", "noise")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", choices=STUDIES, help="which study")
    parser.add_argument("--output", help="folder of raw results, tables and figures (default: results/STUDY)")
    parser.add_argument("--work", default="runs/study", help="folder of what can be made again")
    parser.add_argument("--cifar10", metavar="FILE", help="npz file of CIFAR-10, which the study medium needs")
    parser.add_argument("--processes", type=int, default=1, help="trainings at a time, one thread each")
    parser.add_argument("--no-timing", action="store_true", help="leave the relative times of training steps out")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--pilot", action="store_true", help="measure the pilot's seeds and write the plan from them")
    part.add_argument("--report-only", action="store_true", help="train nothing, write tables and figures anew")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from pathlib import Path

    output = Path(arguments.output or f"results/{arguments.study}")
    if arguments.study == "noise":
        from sts_pipelines.study.noise import conduct_noise

        conduct_noise(output)
        return 0
    from sts_pipelines.study.plan import StudyFolders
    from sts_pipelines.study.run import conduct

    conduct(
        arguments.study,
        StudyFolders(output=output, work=Path(arguments.work)),
        cifar10=None if arguments.cifar10 is None else Path(arguments.cifar10),
        processes=arguments.processes,
        timing=not arguments.no_timing,
        part="pilot" if arguments.pilot else "report" if arguments.report_only else "study",
    )
    return 0
