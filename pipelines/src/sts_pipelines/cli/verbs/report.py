"""sts report: one table and one page with plots from the results of several runs, beside the paper's numbers."""

import argparse
from collections.abc import Sequence
from pathlib import Path

EXAMPLES = """  sts report runs/quickstart-1a2b3c4d
  sts report runs/byol-imagenet-200ep-tma-1a2b3c4d runs/byol-imagenet-200ep-sts-5e6f7a8b --against-paper
  sts report runs/a runs/b --output comparison"""
TAKES_OVERRIDES = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, one that holds run folders, or a URI")
    parser.add_argument("--against-paper", action="store_true", help="put the paper's numbers beside ours")
    parser.add_argument("--output", help="folder of the report (default: report/ in the first run folder)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    report_folders(arguments.runs, against_paper=arguments.against_paper, output=arguments.output)
    return 0


def report_folders(folders: Sequence[str], *, against_paper: bool = False, output: str | None = None) -> None:
    """One report of several runs."""
    from sts_eval import write_report
    from sts_pipelines.config.run_folder import describe_old_run, run_folders
    from sts_pipelines.launch.storage import brought_here
    from sts_pipelines.plugins import load_records

    load_records()
    with brought_here(folders, light=True) as places:
        runs = [run for place in places for run in run_folders(place, "*/config.json", "*/training.json")]
        target = Path(output) if output else Path(places[0]) / "report"
        _, page = write_report(runs, target, against_paper=against_paper, describe=describe_old_run)
    print(f"report: {page.absolute().as_uri()}")
