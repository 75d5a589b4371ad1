"""sts completion: a script that lets a shell complete verbs, names of pipelines and flags.

Names come at once. The flags of a pipeline are its config's, for which torch is imported: the first time takes some
seconds, then they are kept in the user's cache folder.
"""

import argparse
import hashlib
import os
from pathlib import Path

EXAMPLES = """  eval "$(sts completion bash)"            # in ~/.bashrc
  eval "$(sts completion zsh)"             # in ~/.zshrc, after compinit
  sts completion fish > ~/.config/fish/completions/sts.fish"""
TAKES_OVERRIDES = False
NAMED = ("run", "sweep", "show", "check", "bench")
"""The verbs whose argument is a pipeline's name."""

SCRIPTS = {
    "bash": """_sts() {
  local IFS=$'\\n'
  local word=${COMP_LINE:0:$COMP_POINT}
  word=${word##* }
  COMPREPLY=( $(sts completion bash --line "${COMP_LINE:0:$COMP_POINT}" 2>/dev/null) )
  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=( $(compgen -f -- "$word") )
}
complete -o nosort -F _sts sts 2>/dev/null || complete -F _sts sts""",
    "zsh": """_sts() {
  local -a words_found
  words_found=(${(f)"$(sts completion zsh --line "${LBUFFER}" 2>/dev/null)"})
  (( $#words_found )) && compadd -- $words_found || _files
}
compdef _sts sts""",
    "fish": """complete -c sts -a '(sts completion fish --line (commandline -cp) 2>/dev/null)'""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SCRIPTS, help="the shell that the script is for")
    parser.add_argument("--line", help="print what may follow this beginning of a command instead (used by the script)")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    print(SCRIPTS[arguments.shell] if arguments.line is None else "\n".join(candidates(arguments.line)))
    return 0


def candidates(line: str) -> list[str]:
    """The words that may stand at the end of a command that begins like this."""
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.cli.verbs import VERBS

    *before, word = [*line.split()[1:], ""] if line.endswith(" ") else line.split()[1:] or [""]
    if not before:
        found = list(VERBS)
    elif word.startswith("-"):
        found = _own_flags(before[0]) + _overrides(before)
    else:
        any_name = before[0] in NAMED[2:]
        found = [name for name, entry in CATALOG.items() if before == [entry.verb] or (any_name and len(before) == 1)]
    return [one for one in found if one.startswith(word)]


def _own_flags(verb: str) -> list[str]:
    from sts_pipelines.cli.main import build_parser

    parser = build_parser()[1].get(verb)
    return [] if parser is None else [flag for flag in parser._option_string_actions if flag.startswith("--")]


def _overrides(before: list[str]) -> list[str]:
    """The flags of the named pipeline, from the cache of this version's if they are there."""
    from sts_pipelines.catalog import CATALOG

    if len(before) < 2 or before[0] not in NAMED or before[1] not in CATALOG:
        return []
    kept = _cache(before[1])
    try:
        return kept.read_text(encoding="utf-8").split()
    except OSError:
        flags = _computed(before[1])
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text("\n".join(flags), encoding="utf-8")
    except OSError:
        pass  # a folder that cannot be written costs seconds, not the completion
    return flags


def _computed(name: str) -> list[str]:
    from sts_pipelines.cli.resolve import resolve
    from sts_pipelines.config.plain import to_dict
    from sts_pipelines.config.sections import paths

    config = resolve(name)
    return [f"--{path.replace('_', '-')}" for path in paths(type(config), to_dict(config))]


def _cache(name: str) -> Path:
    """Where the flags of a pipeline are kept; another version of a file of ours is another place."""
    import sts_pipelines

    installed = Path(sts_pipelines.__file__).parent
    stamp = "".join(f"{file.stat().st_mtime_ns}" for file in sorted(installed.rglob("*.py")))
    digest = hashlib.sha256(stamp.encode()).hexdigest()[:8]
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "sts" / f"flags-{digest}" / name
