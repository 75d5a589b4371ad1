"""Where the benchmarks' tables go, and on what machine they were measured."""

import platform
import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[1] / "docs/speed.md"


def machine() -> str:
    """`AMD EPYC 7B13, torch 2.9.0`."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text() if cpuinfo.exists() else "")
    return f"{found[1] if found else platform.machine()}, torch {torch.__version__.split('+')[0]}"


def write_table(marker: str, lines: list[str]) -> None:
    """Replace what is between <!-- bench:marker --> and <!-- /bench:marker --> in docs/speed.md."""
    pattern = re.compile(rf"(<!-- bench:{marker} -->\n).*?(<!-- /bench:{marker} -->)", re.DOTALL)
    table = "\n".join(lines) + "\n"
    text, count = pattern.subn(lambda match: f"{match[1]}{table}{match[2]}", PAGE.read_text())
    if count != 1:
        raise SystemExit(f"{PAGE} must have one pair of bench:{marker} markers, found {count}")
    PAGE.write_text(text)
