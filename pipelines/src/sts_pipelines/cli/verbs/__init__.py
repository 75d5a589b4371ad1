"""One file per verb: EXAMPLES, TAKES_OVERRIDES, add_arguments(parser) and run(arguments, overrides)."""

from types import ModuleType

from sts_pipelines.cli.verbs import check, doctor, evaluate, export, list_, report, run, show, study, sweep

VERBS: dict[str, ModuleType] = {
    "list": list_,
    "show": show,
    "check": check,
    "run": run,
    "sweep": sweep,
    "study": study,
    "evaluate": evaluate,
    "export": export,
    "report": report,
    "doctor": doctor,
}
