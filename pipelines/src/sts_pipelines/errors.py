"""The exceptions of the pipelines; every one of them ends a command with one line and exit code 2.

StsError (sts_core)
├── UsageError      (ValueError)     a command that cannot be carried out as typed
├── SchemaError     (ConfigError)    a config with one or several problems, all of them named
├── RunError        (RuntimeError)   a run or a sweep that Ray, its workers or its storage ended
│   ├── WorkersError                 workers that were lost too often
│   └── ClusterError                 a local cluster whose own processes did not start or have ended
└── TrialError      (RuntimeError)   a trial whose smoother applied another p or m than was sampled
"""

import contextlib
import re
from collections.abc import Iterator, Sequence

from sts_core import ConfigError, StsError


class UsageError(StsError, ValueError):
    """A command cannot be carried out as typed."""


class SchemaError(ConfigError):
    """A config has one or several problems; `problems` holds one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(tuple(problems))  # type: ignore[arg-type]  # unpickling passes on what is given here
        self.problems = tuple(problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        return f"{len(self.problems)} problems: " + "; ".join(self.problems)


class RunError(StsError, RuntimeError):
    """The workers of a run failed for good, or Ray or the storage did."""


class WorkersError(RunError):
    """Workers were lost, and not through an error of ours: another attempt may succeed."""


class ClusterError(RunError):
    """Ray's own processes did not start, or one of them has ended: nothing more can be done on this cluster."""


class TrialError(StsError, RuntimeError):
    """A trial did not train with the values that the sweep sampled for it."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; those of other libraries may run to pages."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def memory_told() -> Iterator[None]:
    """Make a sentence of memory that torch or Python could not get."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = first_line(error)
        if not isinstance(error, MemoryError) and not re.search("allocate memory|out of memory", said):
            raise
        raise RunError(
            f"memory ran out ({said}): lower data.image-size or global-batch-size, or raise accumulation"
        ) from error


def require(condition: bool, message: str, *fields: str) -> None:
    """Raise unless `condition` holds; `fields` are the fields of a config that the message is about."""
    if not condition:
        raise ConfigError(message, fields=fields)
