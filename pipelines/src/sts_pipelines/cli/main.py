"""The `sts` command: one file for each verb; a user's mistake ends in one line and exit code 2.

Nothing here imports torch or ray: the handlers do, when they run, so that `sts list` and `--help` answer at once.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Any, NoReturn

from sts_pipelines.cli.interrupts import code_of_signal, end_promptly, leave_with
from sts_pipelines.cli.verbs import VERBS
from sts_pipelines.plugins import also_import

_AS_PYTHON_DOES = warnings.formatwarning


class _Parser(argparse.ArgumentParser):
    """A parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class _Version(argparse.Action):
    """Asks the installed packages, which takes longer than `sts --help` should."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> NoReturn:
        print(f"sts {version('sts-pipelines')}")
        parser.exit()


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser of `sts` and the parsers of its verbs by name."""
    parser = _Parser(
        prog="sts",
        description="Teacher smoothing for student-teacher learning: every experiment of the paper by name.",
        epilog="examples:\n  sts list\n  sts run quickstart\n  sts check byol-imagenet-200ep-sts",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument(
        "--import", metavar="MODULE", help="import a module first, which registers methods, pipelines and the like"
    )
    choices = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    by_name: dict[str, argparse.ArgumentParser] = {}
    for name, verb in VERBS.items():
        summary = (verb.__doc__ or "").splitlines()[0].partition(": ")[2]
        by_name[name] = choices.add_parser(
            name,
            help=summary,
            description=verb.__doc__,
            epilog=f"examples:\n{verb.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        verb.add_arguments(by_name[name])
    return parser, by_name


def split_overrides(tokens: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """What the verb's own parser knows, and the rest: overrides of config fields with their values.

    Done by hand because argparse would give the value of an unknown flag to a positional argument.
    """
    own: list[str] = []
    overrides: list[str] = []
    pending = list(tokens)
    while pending:
        token = pending.pop(0)
        if not token.startswith("--") or token.partition("=")[0] in parser._option_string_actions:
            own.append(token)
            continue
        overrides.append(token)
        if "=" not in token and pending and not pending[0].startswith("--"):
            overrides.append(pending.pop(0))
    return own, overrides


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without `argv` it is this process's command, which Ctrl-C must end."""
    if argv is None:
        end_promptly()
        # Threads that wait for one another spin otherwise: beside other jobs, training became 60 times slower.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        warnings.formatwarning = _in_words
    modules, tokens = split_imports(sys.argv[1:] if argv is None else argv)
    parser, by_name = build_parser()
    overrides: list[str] = []
    if tokens and tokens[0] in VERBS and VERBS[tokens[0]].TAKES_OVERRIDES:
        own, overrides = split_overrides(tokens[1:], by_name[tokens[0]])
        tokens = [tokens[0], *own]
    try:
        arguments = parser.parse_args(tokens)
    except SystemExit as finished:  # argparse leaves this way after --help and after an error
        return int(finished.code or 0)
    code = _run(VERBS[arguments.verb], arguments, overrides, modules)
    if argv is None:
        leave_with(code)
    return code


def split_imports(tokens: Sequence[str]) -> tuple[list[str], list[str]]:
    """The modules that `--import` names, wherever it stands, and the other tokens."""
    modules: list[str] = []
    others: list[str] = []
    pending = list(tokens)
    while pending:
        token = pending.pop(0)
        flag, equals, value = token.partition("=")
        if flag != "--import" or not (equals or pending):
            others.append(token)
        else:
            modules.append(value if equals else pending.pop(0))
    return modules, others


def _run(verb: ModuleType, arguments: argparse.Namespace, overrides: list[str], modules: Sequence[str]) -> int:
    try:
        if modules:
            also_import(modules)
        return int(verb.run(arguments, overrides))
    except (KeyboardInterrupt, SystemExit):  # the latter while Ray starts: its handler of SIGTERM
        print("sts: stopped; the same command continues from the newest checkpoint", file=sys.stderr)
        return code_of_signal()
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_for_the_user(error):
            raise
        print(f"sts: {_in_one_line(error)}", file=sys.stderr)
        return 2


def _in_words(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
    """A warning for users without the line of our code that gave it, which says nothing to them."""
    return f"{message}\n" if category is UserWarning else _AS_PYTHON_DOES(message, category, *place, **more)


def _is_for_the_user(error: Exception) -> bool:
    """Whether sts raises the error on purpose, or a file or folder that it names cannot be used.

    The class of the former is looked up only if its module was imported.
    """
    errors = sys.modules.get("sts_core.errors")
    ours = errors is not None and isinstance(error, errors.StsError)
    return ours or isinstance(error, RecursionError) or (isinstance(error, OSError) and error.filename is not None)


def _in_one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used ({error.strerror})"
    if isinstance(error, RecursionError):
        return "a file is nested too deeply to be one of ours; sts doctor names the damaged ones of a run"
    return " ".join(str(error).split())
