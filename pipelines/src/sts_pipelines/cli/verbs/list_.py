"""sts list: names of all pipelines with their place in the paper, hardware and hours; with --runs the runs on disk.

`hours` are the hours on the hardware named beside them. Where nobody has measured them, `~28 / ~88 h est.` is a model's
estimate for A100 and RTX 2080 Ti, of all runs of a sweep (`min/1,000`: for every 1,000 images), and beside it that for
`--precision bfloat16`.
"""

import argparse
import fnmatch
import json
import shutil
import sys
from pathlib import Path

EXAMPLES = """  sts list
  sts list byol --cpu
  sts list 'fixmatch-cifar10-*'
  sts list --json
  sts list --runs
  sts list byol --runs /data/runs"""
TAKES_OVERRIDES = False
COLUMNS = ("name", "paper", "hardware", "hours", "bfloat16")
WIDE = 110
"""Narrower terminals have no room for the last column."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", help="only names with this in them, or like this (shell wildcards)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--gpu", dest="needs", action="store_const", const="GPU", help="only those that need GPUs")
    kinds.add_argument("--cpu", dest="needs", action="store_const", const="CPU", help="only those that need none")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    kinds.add_argument(
        "--runs",
        nargs="?",
        const="runs",
        metavar="FOLDER",
        help="the runs in a folder (runs/): progress and accuracies",
    )


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    pattern = arguments.pattern if set(arguments.pattern) & set("*?[") else f"*{arguments.pattern}*"
    if arguments.runs is not None:
        return _list_runs(Path(arguments.runs), pattern, as_json=arguments.json)
    from sts_pipelines.catalog import CATALOG

    entries = [
        entry
        for name, entry in CATALOG.items()
        if fnmatch.fnmatch(name, pattern) and (arguments.needs or "") in entry.hardware
    ]
    if not entries:
        from sts_pipelines.errors import UsageError

        raise UsageError(f"no pipeline matches {arguments.pattern!r}: sts list prints all names")
    rows = [{column: str(getattr(entry, column)) for column in (*COLUMNS, "verb")} for entry in entries]
    headings = {column: column.upper() for column in COLUMNS}
    if not arguments.json and (_width() or WIDE) < WIDE:
        del headings["bfloat16"]
    _print(rows, headings, as_json=arguments.json)
    if not arguments.json and any(entry.is_estimated for entry in entries):
        print("est.: on A100 / on RTX 2080 Ti; not measured, and the truth may be twice that")
    return 0


def _list_runs(folder: Path, pattern: str, *, as_json: bool) -> int:
    from sts_pipelines.cli.runs_table import HEADINGS, row_of, runs_in

    rows = [row for run in runs_in(folder) if fnmatch.fnmatch((row := row_of(run, folder))["run"], pattern)]
    if not rows:
        from sts_pipelines.errors import UsageError  # with torch, which the table does without

        rule = (
            f"no run in {folder} matches {pattern!r}" if folder.is_dir() else f"{folder} is no folder that holds runs"
        )
        raise UsageError(f"{rule}: name another with --runs")
    _print(rows, HEADINGS, as_json=as_json)
    return 0


def _print(rows: list[dict[str, str]], headings: dict[str, str], *, as_json: bool) -> None:
    from sts_pipelines.terminal import text_table

    print(json.dumps(rows, indent=2) if as_json else text_table(rows, headings, width=_width()))


def _width() -> int | None:
    """Of the terminal, if it is one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
