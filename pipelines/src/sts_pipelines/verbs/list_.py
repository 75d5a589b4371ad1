"""sts list: names of all pipelines with their place in the paper, hardware and hours.

`hours` are the hours on the hardware named beside them; a question mark says that nobody has measured them yet.
"""

import argparse
import fnmatch
import json

EXAMPLES = """  sts list
  sts list 'fixmatch-cifar10-*'
  sts list --json"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="*", help="only names that match this pattern (shell wildcards)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.catalog import CATALOG

    entries = [entry for name, entry in CATALOG.items() if fnmatch.fnmatch(name, arguments.pattern)]
    if not entries:
        from sts_pipelines.errors import UsageError

        raise UsageError(f"no pipeline matches {arguments.pattern!r}: sts list prints all names")
    rows = [
        {"name": e.name, "verb": e.verb, "paper": e.paper, "hardware": e.hardware, "hours": e.hours} for e in entries
    ]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(
        _table(
            [
                ("NAME", "PAPER", "HARDWARE", "HOURS"),
                *((r["name"], r["paper"], r["hardware"], r["hours"]) for r in rows),
            ]
        )
    )
    return 0


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
