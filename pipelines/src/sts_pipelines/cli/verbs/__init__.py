"""One file per verb: EXAMPLES, TAKES_OVERRIDES, add_arguments(parser) and run(arguments, overrides)."""

from types import ModuleType

from sts_pipelines.cli.verbs import (
    bench,
    check,
    completion,
    doctor,
    evaluate,
    export,
    list_,
    new,
    prepare,
    report,
    run,
    show,
    study,
    sweep,
)

VERBS: dict[str, ModuleType] = {
    "list": list_,
    "show": show,
    "check": check,
    "bench": bench,
    "run": run,
    "sweep": sweep,
    "study": study,
    "evaluate": evaluate,
    "export": export,
    "report": report,
    "doctor": doctor,
    "prepare": prepare,
    "new": new,
    "completion": completion,
}
