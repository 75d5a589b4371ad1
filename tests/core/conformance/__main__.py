"""`ci/bench conformance`: runs every probe with every host and writes the table into packages/sts-core/docs."""

import argparse
import logging
import re
import warnings
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.core.conformance import ranks
from tests.core.conformance.hosts import HOSTS
from tests.core.conformance.probes import BREAKS, BY_RANKS, PROBES, Cell, probe

PAGE = Path(__file__).parents[3] / "packages/sts-core/docs/conformance.md"
MARKS = ("<!-- conformance -->", "<!-- /conformance -->")
Cells = Mapping[tuple[str, str], Cell]


def measured(hosts: Iterable[str], folder: Path) -> Cells:
    hosts = list(hosts)
    alone = {
        (host, name): probe(HOSTS[host], name, folder) for host in hosts for name in PROBES if name not in BY_RANKS
    }
    return alone | dict(ranks.cells(hosts, folder / "ranks"))


def table(cells: Cells) -> str:
    """A row for each host, and below what stands behind the words."""
    lines = [f"| average | version | {' | '.join(PROBES)} |", "|---" * (2 + len(PROBES)) + "|"]
    for host in HOSTS:
        words = [cells[host, p].verdict.replace(BREAKS, f"**{BREAKS}**") for p in PROBES]
        lines.append(f"| {host} | {version(HOSTS[host].package)} | {' | '.join(words)} |")
    for host in HOSTS:
        lines += ["", f"{host}:", ""]
        lines += [f"- {p}, {cells[host, p].verdict}: {cells[host, p].remark}" for p in PROBES if cells[host, p].remark]
    return "\n".join(lines)


def written() -> dict[str, dict[str, str]]:
    """The words of the table on the page, with the version: by host and column."""
    text = PAGE.read_text().partition(MARKS[0])[2]
    rows = [re.split(r"\*{0,2} \| \*{0,2}", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    head, *body = rows
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in body}


def main() -> None:
    parser = argparse.ArgumentParser(prog="ci/bench conformance", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="print the table and leave the page alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with TemporaryDirectory() as folder:
        text = table(measured(HOSTS, Path(folder)))
    print(text)
    if not arguments.dry:
        before, rest = PAGE.read_text().split(MARKS[0])
        PAGE.write_text(f"{before}{MARKS[0]}\n{text}\n{rest[rest.index(MARKS[1]) :]}")


if __name__ == "__main__":
    main()
