"""sts list: names of all pipelines with their place in the paper, hardware and hours.

`hours` are the hours on the hardware named beside them; a question mark says that nobody has measured them yet.
"""

import argparse
import fnmatch
import json
import shutil
import sys

EXAMPLES = """  sts list
  sts list byol --cpu
  sts list 'fixmatch-cifar10-*'
  sts list --json"""
TAKES_OVERRIDES = False
COLUMNS = ("name", "paper", "hardware", "hours")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", help="only names with this in them, or like this (shell wildcards)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--gpu", dest="needs", action="store_const", const="GPU", help="only those that need GPUs")
    kinds.add_argument("--cpu", dest="needs", action="store_const", const="CPU", help="only those that need none")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.terminal import text_table

    pattern = arguments.pattern if set(arguments.pattern) & set("*?[") else f"*{arguments.pattern}*"
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
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(json.dumps(rows, indent=2) if arguments.json else text_table(rows, headings, width=width))
    return 0
