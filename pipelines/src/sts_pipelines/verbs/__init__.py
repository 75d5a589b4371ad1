"""One file per verb: EXAMPLES, TAKES_OVERRIDES, add_arguments(parser) and run(arguments, overrides)."""

from dataclasses import dataclass
from typing import Any

from sts_pipelines.verbs import check, doctor, evaluate, export, list_, report, run, show, study, sweep


@dataclass(frozen=True)
class Verb:
    """A word of the command line and the module that carries it out."""

    name: str
    module: Any


VERBS = (
    Verb("list", list_),
    Verb("show", show),
    Verb("check", check),
    Verb("run", run),
    Verb("sweep", sweep),
    Verb("study", study),
    Verb("evaluate", evaluate),
    Verb("export", export),
    Verb("report", report),
    Verb("doctor", doctor),
)
