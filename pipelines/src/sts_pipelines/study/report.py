"""The report of a study: README.md with verdicts, tables and figures, written from its records alone."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sts_core.files import write_atomically
from sts_pipelines.study import claims, small, tables
from sts_pipelines.study.figures import write_figures
from sts_pipelines.study.outcomes import Outcomes
from sts_pipelines.study.plan import Record, Study

READING = ("<!-- reading: written by hand, kept when the report is written anew -->", "<!-- /reading -->")
COMMAND = "sts study small --output pipelines/results/small --processes 2 --cifar10 cifar10.npz"


def write_study_report(study: Study, records: Mapping[str, Record], output: Path) -> str:
    """README.md and figures in `output`; a sentence on what was written."""
    outcomes = Outcomes(study, records)
    found = claims.findings(outcomes)
    figures = write_figures(outcomes, found, output)
    times_file = output / "timing.json"
    times = json.loads(times_file.read_text()) if times_file.is_file() else []
    path = output / "README.md"
    sections = [
        _head(study, records, outcomes),
        _reading(path),
        _verdicts(found),
        *(
            f"## {title}\n\n{tables.means_table(outcomes, name)}"
            for name, title in tables.settings_of(outcomes).items()
        ),
        _fixmatch(outcomes),
        _plane(outcomes),
        _times(times),
        "\n\n".join(f"![{caption}]({name})\n\n*{caption}.*" for name, caption in figures),
    ]
    write_atomically(path, "\n\n".join(section for section in sections if section) + "\n")
    return f"wrote {path}: {len(found)} comparisons from {len(records)} runs"


def _head(study: Study, records: Mapping[str, Record], outcomes: Outcomes) -> str:
    total = len({run.key for run in study.runs})
    done = len({run.key for run in study.runs} & set(records))
    revisions = ", ".join(outcomes.revisions()) or "unknown"
    explanation = (small.__doc__ or "").partition("\n\n")[2].strip()
    return f"""# The study `{study.name}`: the paper's claims at the size of two CPU cores

Written by `{COMMAND}`, which resumes where it stopped. {done} of {total} runs, {outcomes.cpu_hours():.1f} CPU hours,
code at {revisions} (a plus sign: with changes that were not committed). Raw numbers: `results.jsonl`, one run a line;
configs: `config.json`; times: `timing.json`. The paper's own numbers come from ImageNet on 8 GPUs; they are quoted
beside ours and were not run again.

{explanation}
- Accuracy is in percent on held-out images, after the last step, ± the half width of a 95 % t-interval over seeds. The
  probe is softmax regression with one fixed penalty, k-NN takes 20 neighbours. "Corrupted" is the probe's mean top-1
  over the 15 corruptions of ImageNet-C at severities 1, 3 and 5, made at 32 pixels from 359 digits or 500 CIFAR images.
- "Untrained" is the initial network with batch statistics of the data: a learning rate of 0."""


def _reading(path: Path) -> str:
    """What somebody wrote about these results by hand, if anything."""
    begin, end = READING
    old = path.read_text() if path.is_file() else ""
    kept = re.search(re.escape(begin) + r"(.*?)" + re.escape(end), old, re.DOTALL)
    return f"{begin}{kept[1] if kept else chr(10)}{end}"


def _verdicts(found: list[claims.Finding]) -> str:
    counts = Counter(finding.verdict for finding in found)
    rule = (claims.__doc__ or "").partition("The rule. ")[2].strip()
    holds, fails, open_ = counts["holds"], counts["does not hold"], counts["cannot be told at this size"]
    return f"""## Claims

{rule}

Of {len(found)} comparisons {holds} hold, {fails} do not hold and {open_} cannot be told at this size. With so many, one
in twenty intervals is expected to miss by chance. Differences are oriented so
that a positive one supports the claim; "student" shows the same difference for the student.

{tables.claims_table(found)}"""


def _fixmatch(outcomes: Outcomes) -> str:
    experiments: dict[str, str] = {}
    for name, title in (("digits", "digits"), ("cifar10", "CIFAR-10")):
        for labels in small.DIGIT_LABELS if name == "digits" else small.CIFAR_LABELS:
            experiments[f"fixmatch-{name}-{labels}"] = f"{title}, {labels}, student labels"
            experiments[f"fixmatch-{name}-{labels}-teacher"] = f"{title}, {labels}, teacher labels"
    if not any(outcomes.teachers(name) for name in experiments):
        return ""
    return f"""## FixMatch: top-1 of the teachers

Where the student labels, the teacher never touches the training: one run per seed serves all teachers, and the
differences are those of the averages alone.

{tables.fixmatch_table(outcomes, experiments)}"""


def _plane(outcomes: Outcomes) -> str:
    if not outcomes.teachers("byol-digits-grid"):
        return ""
    best = claims.best_probabilities(outcomes)
    per_seed = "; ".join(
        f"seed {seed}: " + ", ".join(f"m {m:g} → p {p:g}" for m, p in sorted(chosen.items()))
        for seed, chosen in sorted(best.items())
    )
    return f"""## The p x m plane: BYOL on digits

Linear top-1 of the teacher, {len(small.SEEDS)} seeds. Best p per seed: {per_seed or "not complete"}.

{tables.grid_table(outcomes, small.GRID_MOMENTA, small.GRID_PROBABILITIES)}"""


def _times(times: list[dict[str, object]]) -> str:
    if not times:
        return ""
    return f"""## Relative time of a training step

BYOL steps at 32 pixels (both views through student and teacher, backward, optimizer, teacher update; heads as on
ImageNet), {times[0]["machine"]}: CPU time relative to TMA of the same implementation in the same turn, median and
quartiles, p = .7. "Pseudo-code" is the paper's loop with `torch.rand` and `torch.where`. The batches are small, so the
share of the update is far larger than in the paper's steps of 32 images of 224 pixels per GPU.

{tables.timing_table(times)}"""
