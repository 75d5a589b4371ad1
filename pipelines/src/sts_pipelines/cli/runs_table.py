"""Runs on disk in a line each, read without torch: how far they are, and what was measured so far."""

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HEADINGS = {"run": "RUN", "progress": "PROGRESS", "last": "LAST LINE", "loss": "LOSS", "curve": "IN TRAINING"}
HEADINGS |= {"results": "RESULTS (TEACHER)"}

Values = Mapping[str, Any]


def runs_in(folder: Path) -> list[Path]:
    """All runs in a folder, those inside comparisons and sweeps included."""
    found = {file.parent for depth in ("", "*/", "*/*/") for file in folder.glob(f"{depth}metrics.jsonl")}
    return sorted(found)


def row_of(run: Path, folder: Path, *, now: float | None = None) -> dict[str, str]:
    """What the table shows of a run."""
    file = run / "metrics.jsonl"
    lines = list(_objects(file))
    last = lines[-1] if lines else {}
    age = (time.time() if now is None else now) - file.stat().st_mtime
    curve = {name: value for line in lines for name, value in line.items() if name.count("/") == 2}
    return {
        "run": str(run.relative_to(folder)) if run != folder else run.name,
        "progress": _progress(run, last),
        "last": f"{_spoken(age)} ago",
        "loss": f"{last['loss']:.4g}" if _is_number(last.get("loss")) else "-",
        "curve": _shown({name: value for name, value in curve.items() if name.split("/")[1] == "teacher"}),
        "results": _shown(_results(run)) if _is_whole(run / "results.json") else "damaged: evaluate the run again",
    }


def _progress(run: Path, last: Values) -> str:
    """Steps done of those planned, and whether the networks are there."""
    step, total = last.get("step", 0), _object(run / "plan.json").get("total_steps")
    if not _is_number(step):
        return "?"
    if _object(run / "teacher.json").get("step") == step:
        return f"{step:,} steps, done"
    return f"{step:,} of {total:,}" if _is_number(total) else f"{step:,} steps"


def _results(run: Path) -> dict[str, Any]:
    """The teacher's numbers by evaluation/teacher/metric: those that were asked for last."""
    entries = _object(run / "results.json").get("entries")
    rows = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    found: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: -row["recency"] if _is_number(row.get("recency")) else 0):
        if (row.get("network"), row.get("which")) == ("teacher", "last"):
            found.setdefault(f"{row.get('evaluation')}/teacher/{row.get('metric')}", row.get("value"))
    return found


def _shown(values: Values) -> str:
    """`knn 91.2, linear 86.0`: one number of each evaluation, top-1 where there is one."""
    by_evaluation: dict[str, float] = {}
    for name, value in values.items():
        evaluation, _, rest = name.partition("/")
        if _is_number(value) and (evaluation not in by_evaluation or rest.endswith("/top1")):
            by_evaluation[evaluation] = value
    return ", ".join(f"{name} {value:.1f}" for name, value in sorted(by_evaluation.items())) or "-"


def _objects(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(errors="replace").splitlines():
        if isinstance(value := _parsed(line), dict):
            yield value


def _object(file: Path) -> dict[str, Any]:
    """A file's JSON object; nothing where there is none, since a table is no place to complain."""
    value = _parsed(file.read_text(errors="replace")) if file.is_file() else None
    return value if isinstance(value, dict) else {}


def _is_whole(file: Path) -> bool:
    return not file.is_file() or "entries" in _object(file)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spoken(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"
