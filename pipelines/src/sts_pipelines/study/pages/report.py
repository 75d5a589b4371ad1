"""The report of a study: README.md with verdicts, figures and tables, written from its records alone."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from sts_core.files import write_atomically
from sts_pipelines.study import verdicts
from sts_pipelines.study.outcomes import Outcomes
from sts_pipelines.study.pages import tables
from sts_pipelines.study.pages.figures import write_forest_plots
from sts_pipelines.study.plan import Record, Study


def write_study_report(study: Study, records: Mapping[str, Record], output: Path) -> str:
    """README.md and figures in `output`; a sentence on what was written."""
    outcomes = Outcomes(study, records)
    found = verdicts.findings(study, outcomes)
    figures = write_forest_plots(found, output)
    times_file = output / "timing.json"
    times = json.loads(times_file.read_text()) if times_file.is_file() else []
    path = output / "README.md"
    sections = [
        _head(study, records, outcomes),
        _overall(found),
        "\n\n".join(f"![{claim}]({name})" for claim, name in figures.items()),
        f"## All comparisons\n\n{tables.claims_table(found)}",
        f"## Accuracies\n\n{tables.means_table(study, outcomes)}\n\n{tables.fixmatch_table(study, outcomes)}",
        _times(times),
    ]
    write_atomically(path, "\n\n".join(section for section in sections if section) + "\n")
    return f"wrote {path}: {len(found)} comparisons from {len(records)} runs"


def _head(study: Study, records: Mapping[str, Record], outcomes: Outcomes) -> str:
    keys = {run.key for run in study.runs}
    revisions = ", ".join(outcomes.revisions()) or "unknown"
    return f"""# The study `{study.name}`: {study.title}

Written by `sts study {study.name}`, which resumes where it stopped. {len(keys & set(records))} of {len(keys)} runs,
{outcomes.cpu_hours():.1f} CPU hours, code at {revisions}. The claims, the settings, the seeds and the rule of the
verdicts were fixed before: [plan](plan.md). Raw numbers: `results.jsonl`, one run a line; configs: `config.json`."""


def _overall(found: Sequence[verdicts.Finding]) -> str:
    counts = Counter(finding.verdict for finding in found)
    text = ", ".join(f"{verdict}: {count}" for verdict, count in counts.most_common())
    if counts["interim"]:
        text += ". **Interim**: a comparison has no verdict before the last of its planned seeds"
    how = "Differences are oriented so that a positive one supports the claim; the shaded band is the margin."
    return f"{len(found)} comparisons; {text}. {how}"


def _times(times: list[dict[str, object]]) -> str:
    if not times:
        return ""
    return f"""## Relative time of a training step

BYOL steps at 32 pixels (both views through student and teacher, backward, optimizer, teacher update; heads as on
ImageNet), {times[0]["machine"]}: CPU time relative to TMA of the same implementation in the same turn, median and
quartiles, p = .7. "Pseudo-code" is the paper's loop with `torch.rand` and `torch.where`. The batches are small, so the
share of the update is far larger than in the paper's steps of 32 images of 224 pixels per GPU.

{tables.timing_table(times)}"""
