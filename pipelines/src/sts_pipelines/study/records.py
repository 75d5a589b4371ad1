"""results.jsonl: one JSON object a line for each run that was measured, written by several processes."""

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

from sts_core.files import locked
from sts_pipelines.study.plan import Record


def append_record(path: Path, record: Record) -> None:
    """Add one line under a lock: processes that finish together do not mix their lines."""
    line = json.dumps(_rounded(asdict(record)), separators=(",", ":"))
    with locked(path.with_name(f".{path.name}.lock")), path.open("a+") as file:
        file.seek(0)
        content = file.read()
        file.write(("" if not content or content.endswith("\n") else "\n") + line + "\n")


def read_records(path: Path) -> dict[str, Record]:
    """All records by key; a line cut short by a kill is left out, and its run will be measured again."""
    records: dict[str, Record] = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            record = Record(**json.loads(line))
        except (ValueError, TypeError):
            continue
        records[record.key] = record
    return records


def git_revision() -> str:
    """The short revision of this source tree, with a plus sign where it has changes; empty outside of git."""
    here = Path(__file__).parent
    try:
        revision = _git("rev-parse", "--short", "HEAD", cwd=here)
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", ":/packages/*/src", ":/pipelines/src", cwd=here
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return revision + ("+" if changed else "")


def _git(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _rounded(value: object) -> object:
    """Floats to six digits, which keeps a line short."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
