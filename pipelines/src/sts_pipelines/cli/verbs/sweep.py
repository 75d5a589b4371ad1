"""sts sweep: visit a grid of (m, p, granularity) or of any other fields, or search it, on Ray Tune over Ray Train.

The result is a table, a CSV and the p x m heat map with lines of equal m_eff = 1 - (1-p)(1-m). Rerun the
same command to resume a killed sweep: it finishes only what is missing. A single pipeline becomes a sweep by what
--sweep.over varies; --sweep.seeds trains every cell with several seeds, whose means get intervals.
"""

import argparse
import sys

EXAMPLES = """  sts sweep byol-digits-p-by-m
  sts sweep byol-imagenet-p-by-m --data.root /data/imagenet --with-control
  sts sweep byol-digits-p-by-m --sweep.momenta 0,0.99 --sweep.preserve-probabilities 0,0.5,0.9
  sts sweep byol-digits-p-by-m --sweep.search asha --sweep.metric knn/teacher/top1 --sweep.coordinates m_eff-p
  sts sweep byol-digits-sts --sweep.over optimizer.lr=0.3,0.6,1.2 --sweep.over data.image-size=12,16 --sweep.seeds 0,1,2
  sts sweep fixmatch-digits-p-by-m"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="a sweep, or a pipeline to be varied, of `sts list`, or a YAML file")
    parser.add_argument("--with-control", action="store_true", help="also train TMA(m_eff) for every cell with p > 0")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.cli.resolve import resolve
    from sts_pipelines.cli.verbs.run import check_and_note
    from sts_pipelines.config.sweep import SweepConfig
    from sts_pipelines.diagnostics.work import estimate_of, num_runs
    from sts_pipelines.errors import UsageError
    from sts_pipelines.sweep.run import run_sweep, sweep_folder

    if arguments.with_control:
        overrides = [*overrides, "--sweep.with-control", "true"]
    config = resolve(arguments.pipeline, overrides, to_sweep=True)
    if not isinstance(config, SweepConfig):
        raise UsageError(
            f"{arguments.pipeline} is not a sweep: run it with sts run {arguments.pipeline}, or, if it is a single "
            "pipeline, say what to vary, as in --sweep.over optimizer.lr=0.03,0.1"
        )
    check_and_note(config, sweep_folder(config))
    for estimate in estimate_of(config)[:1]:
        print(f"{num_runs(config)} runs in all: {estimate}, by estimate", file=sys.stderr, flush=True)
    run_sweep(config)
    return 0
