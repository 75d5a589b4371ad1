"""Reports on runs: one Markdown file and one HTML page that needs nothing but itself.

    write_report(["runs/byol-digits-tma", "runs/byol-digits-sts"], "report")

Each section appears where there is data for it. Nothing is written unless the whole report could be made.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sts_core import ConfigError
from sts_core.files import write_atomically
from sts_eval.report.blocks import Fact, Report, Section
from sts_eval.report.headline import Measure, headline
from sts_eval.report.html import to_html
from sts_eval.report.markdown import to_markdown
from sts_eval.report.runs import Run, read_runs
from sts_eval.report.sections.corruptions import corruption_section
from sts_eval.report.sections.during_training import during_training_section
from sts_eval.report.sections.figures import curves_section, drift_section, plane_section
from sts_eval.report.sections.paper import paper_section
from sts_eval.report.sections.tables import (
    config_section,
    control_section,
    granularity_section,
    overview_section,
    results_section,
)
from sts_eval.report.settings import ONE_SEED, Setting, by_setting, settings_of
from sts_eval.runs.training import Describe


def build_report(runs: Sequence[Run], *, against_paper: bool = True) -> Report:
    """The report as values, not yet Markdown or HTML."""
    runs = by_setting(runs)
    sections: list[Section | None] = [
        overview_section(runs),
        paper_section(runs) if against_paper else None,
        plane_section(runs),
        control_section(runs),
        granularity_section(runs, against_paper=against_paper),
        results_section(runs),
        drift_section(runs),
        corruption_section(runs, against_paper=against_paper),
        during_training_section(runs),
        curves_section(runs),
        config_section(runs),
    ]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    return Report(title, _facts(runs), [section for section in sections if section is not None])


def _facts(runs: Sequence[Run]) -> list[Fact]:
    measure = headline(runs)
    facts = [Fact("runs", str(len(runs)))]
    if measure is not None:
        facts += _ranking(settings_of(runs, measure), measure)
    steps = [int(line["step"]) for run in runs for line in run.metrics[-1:] if "step" in line]
    if steps:
        facts.append(Fact("steps trained", f"{sum(steps):,}"))
    return facts


def _ranking(settings: Sequence[Setting], measure: Measure) -> list[Fact]:
    """The setting of the highest mean over seeds, and how surely it is ahead of the next."""
    best, *others = sorted(settings, key=lambda setting: -setting.estimate.mean)
    found = best.estimate
    spread = "" if found.high is None else f" ± {found.high - found.mean:.2f}"
    seeds = ONE_SEED if found.count == 1 else f"{found.count} seeds"
    label = "highest mean over seeds" if others else "result"
    facts = [Fact(label, f"{found.mean:.2f}{spread}\N{NO-BREAK SPACE}%", f"{best.name} ({seeds}): {measure.title}")]
    if others:
        facts.append(Fact("ahead of the next", str(best.minus(others[0])), f"{others[0].name}: {others[0].estimate}"))
    return facts


def write_report(
    runs: Iterable[str | Path], path: str | Path, *, against_paper: bool = True, describe: Describe | None = None
) -> tuple[Path, Path]:
    """Write report.md and report.html about `runs` into the folder `path`; returns the two files.

    >>> entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "value": 72.7, "which": "last"}
    >>> add_entries("runs/mine/results.json", [entry]).run
    'mine'
    >>> markdown, page = write_report(["runs/mine"], "report")
    >>> page.name
    'report.html'

    `runs` are run folders, or folders that hold run folders (a sweep), with training.json, metrics.jsonl and
    results.json, whichever of them there are; `against_paper` sets the paper's numbers beside theirs, and `describe` is
    asked about runs that are older than training.json.
    """
    folder = Path(path)
    if (nearest := next(place for place in (folder, *folder.absolute().parents) if place.exists())).is_file():
        raise ConfigError(f"a report is written into a folder, {nearest} is a file: name another place")
    report = build_report(read_runs(runs, describe), against_paper=against_paper)
    markdown, page = to_markdown(report), to_html(report)
    write_atomically(folder / "report.md", markdown)
    write_atomically(folder / "report.html", page)
    return folder / "report.md", folder / "report.html"


def results_markdown(run: str | Path, *, describe: Describe | None = None) -> str:
    """All that was measured of one run as tables in Markdown, without what a whole report adds; "" if nothing was."""
    runs = read_runs([run], describe)
    sections = [results_section(runs), corruption_section(runs, against_paper=False)]
    found = [section for section in sections if section is not None]
    return to_markdown(Report("", [], found)).removeprefix("# \n").strip() if found else ""
