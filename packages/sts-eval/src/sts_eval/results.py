"""results.json: what a run's evaluations found, in one file that is never half-written.

    {"format": "sts-results", "run": "<name>", "entries": [
        {"evaluation": "linear", "network": "teacher", "metric": "top1", "value": 72.7, "which": "last", ...}, ...]}

Values are percent wherever the paper prints percent. The order of the entries means nothing: tables show those of the
highest `recency`, which `RunResults` holds first. Further keys of the file (`seed`, `paper`, `conditions`) say which
row of the paper a run stands for; `compare_with_paper` reads them.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sts_core import ConfigError, StateError
from sts_core.files import write_atomically
from sts_eval.evaluations import evaluation_called

FORMAT = "sts-results"
FILE_NAME = "results.json"
KIND = ("evaluation", "network", "metric", "which")
REQUIRED = (*KIND, "value")

KINDS = {"run": str, "seed": int, "paper": dict, "conditions": dict, "entries": list}
"""What the file may hold beside its format, and as what; `run` is the one that must be there."""

Entry = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """All evaluations of one run."""

    run: str
    """Name of the run."""
    entries: tuple[dict[str, Any], ...] = ()
    """One dict per number, `REQUIRED` keys in each, details beside them; what was asked for last comes first."""
    seed: int | None = None
    """Seed of the training run: runs that differ in nothing else are averaged."""
    paper: Mapping[str, str] | None = None
    """The row of the paper it repeats: {"table": ..., "row": ...}, keys of `sts_eval.published`."""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    """What was trained (dataset, backbone, epochs, ...), to judge whether it may stand beside that row."""

    def __post_init__(self) -> None:
        for entry in self.entries:
            check_entry(entry)
        object.__setattr__(self, "entries", tuple(dict(entry) for entry in self.entries))

    def with_entries(self, entries: Sequence[Entry]) -> "RunResults":
        """These results with `entries` first; an older entry of the same key (see `entry_key`) is dropped."""
        new = {entry_key(entry): dict(entry) for entry in entries}
        return replace(self, entries=(*new.values(), *(old for old in self.entries if entry_key(old) not in new)))

    def preferring(self, is_preferred: Callable[[Entry], bool]) -> "RunResults":
        """These results with the entries first that tables are to show."""
        return replace(self, entries=tuple(sorted(self.entries, key=lambda entry: not is_preferred(entry))))

    def to_json(self) -> dict[str, Any]:
        """The content of results.json."""
        content: dict[str, Any] = {"format": FORMAT, "run": self.run}
        optional = {"seed": self.seed, "paper": self.paper and dict(self.paper), "conditions": dict(self.conditions)}
        content |= {key: value for key, value in optional.items() if value not in (None, {})}
        last = len(self.entries)
        return content | {"entries": [{**entry, "recency": last - k} for k, entry in enumerate(self.entries)]}


def check_entry(entry: Entry) -> None:
    """Raise unless `entry` has all required keys and a finite value."""
    if not isinstance(entry, Mapping):
        raise ConfigError(f"a result must hold named values, got {entry!r}: write {', '.join(REQUIRED)}")
    known = evaluation_called(str(entry["evaluation"])).required if "evaluation" in entry else ()
    needed = (*REQUIRED, *known)
    missing = [key for key in needed if key not in entry]
    if missing:
        raise ConfigError(f"a result needs {', '.join(needed)}, but {', '.join(missing)} is missing")
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(
            f"a result's value must be a finite number, got {value!r} for {entry['metric']}: leave it out"
        )


def entry_key(entry: Entry) -> tuple[Any, ...]:
    """What makes two entries the same measurement: their kind, and the settings under which a pipeline measured it."""
    return (*_kind(entry), entry.get("settings"))


def _kind(entry: Entry) -> tuple[Any, ...]:
    """What readers tell apart: network and metric, seed and details such as k, as the evaluation's record says."""
    return (*(entry[key] for key in KIND), text_of(entry, "seed", *evaluation_called(entry["evaluation"]).identity))


def newest(entries: Iterable[Entry]) -> list[Entry]:
    """The first entry of each kind, which was asked for last; those of other settings of a pipeline are left out."""
    kinds: dict[tuple[Any, ...], Entry] = {}
    for entry in entries:
        kinds.setdefault(_kind(entry), entry)
    return list(kinds.values())


def text_of(entry: Entry, *names: str) -> str:
    """Values of an entry such as a probe's protocol as text, the same before and after results.json."""
    return json.dumps([entry.get(name) for name in names], sort_keys=True)


def _path(path: str | Path) -> Path:
    """A file is one that ends in .json; all else is a run's folder, which need not be there yet."""
    return Path(path) if Path(path).suffix == ".json" and not Path(path).is_dir() else Path(path) / FILE_NAME


def write_results(path: str | Path, results: RunResults) -> Path:
    """Write `results` to a run's folder or to a file; returns the file."""
    file = _path(path)
    write_atomically(file, json.dumps(results.to_json(), indent=2, allow_nan=False) + "\n")
    return file


def read_results(path: str | Path) -> RunResults:
    """Read results.json of a run's folder, or a file of that format."""
    file = _path(path)
    try:
        content = json.loads(file.read_text())
    except FileNotFoundError:
        raise StateError(
            f"a run's results are in {FILE_NAME}, but {file} does not exist: evaluate the run first"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StateError(f"{file} must be JSON, but it is not ({error}): evaluate the run again") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StateError(f"{file} must have the format {FORMAT!r}, but it has not: pass a run that was evaluated")
    fields: dict[str, Any] = {"run": content.get("run")}
    fields |= {key: content[key] for key in KINDS if content.get(key) is not None}
    for key, value in fields.items():
        if not isinstance(value, KINDS[key]):
            raise StateError(
                f"{key} in {file} must be a {KINDS[key].__name__}, got {value!r}: correct or delete the file"
            )
    try:
        return RunResults(**fields | {"entries": _by_recency(fields.get("entries", []))})
    except ConfigError as error:
        raise StateError(f"{file} holds an entry that is no result: {error}") from None


def _by_recency(entries: list[Any]) -> tuple[Any, ...]:
    """Entries without their `recency`, the highest first; files of earlier versions have none and are in that order."""
    numbers = [entry.pop("recency", 0) if isinstance(entry, dict) else 0 for entry in entries]
    ordered = sorted(zip(numbers, entries, strict=True), key=lambda pair: -pair[0] if isinstance(pair[0], int) else 0)
    return tuple(entry for _, entry in ordered)


def add_entries(path: str | Path, entries: Sequence[Entry], *, run: str | None = None) -> RunResults:
    """Add entries to a run's results.json, making it where there is none; the same measurement is replaced."""
    file = _path(path)
    known = read_results(file) if file.is_file() else RunResults(run=run or file.parent.name)
    results = known.with_entries(entries)
    write_results(file, results)
    return results
