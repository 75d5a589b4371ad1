"""From what a user typed (a name or a YAML file, and overrides) to a complete, checked config."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sts_pipelines.catalog import CATALOG
from sts_pipelines.config.evaluation import measurable
from sts_pipelines.config.flags import Flag, read_flags, set_flags
from sts_pipelines.config.kinds import AnyPipeline
from sts_pipelines.config.pipeline import ComparisonConfig, PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.reading import BareFlag, from_dict
from sts_pipelines.config.sections import kind_of
from sts_pipelines.config.sweep import AXES, SweepConfig
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.errors import SchemaError, UsageError
from sts_pipelines.plugins import load_records

KINDS: dict[str, type] = {kind_of(cls): cls for cls in (PipelineConfig, ComparisonConfig, SweepConfig)}


def resolve(target: str, overrides: Sequence[str] = (), *, to_sweep: bool = False) -> AnyPipeline:
    """The config called `target` with `overrides` applied; `to_sweep` makes a pipeline a sweep of what they vary."""
    cls, plain = _load(target)
    if to_sweep and cls is PipelineConfig and any(flag.startswith("--sweep.") for flag in overrides):
        others, overrides = _split_sweep(overrides)
        cls, plain = SweepConfig, _one_cell(resolve(target, others))
    _refuse_overrides_without_effect(target, cls, overrides)
    flags = list(read_flags(overrides))
    try:
        config: AnyPipeline = from_dict(cls, set_flags(cls, plain, flags))
    except SchemaError:
        raise SchemaError(
            _with_place(target, _problems(cls, plain, flags), of_file=_problems(cls, plain, []))
        ) from None
    return config


def _split_sweep(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The overrides of a pipeline, and those of what a sweep of it varies."""
    parts: tuple[list[str], list[str]] = ([], [])
    for path, text in read_flags(overrides):
        value = [] if isinstance(text, BareFlag) else [str(text)]
        parts[path[0] == "sweep"].extend([f"--{'.'.join(path)}", *value])
    return parts


def _one_cell(pipeline: AnyPipeline) -> dict[str, Any]:
    """The plain form of a sweep that visits the pipeline's own teacher alone, ranked by its quickest evaluation."""
    assert isinstance(pipeline, PipelineConfig)
    smoothing = pipeline.training.smoothing
    sweep: dict[str, Any] = {"over": {name: [getattr(smoothing, name.partition(".")[2])] for name in AXES}}
    if asked := [measurable()[name] for name in pipeline.evaluation.after_training]:
        ranking = min(asked, key=lambda one: (one.headline is None, not one.trains_nothing, one.place))
        sweep["metric"] = f"{ranking.name}/teacher/{ranking.metrics[0].name}"
    return to_dict(pipeline) | {"sweep": sweep}


def _with_place(target: str, problems: Sequence[str], *, of_file: Sequence[str]) -> list[str]:
    """Problems that a file has without any flag, under its name."""
    return [f"{target}: {problem}" if problem in of_file else problem for problem in problems]


def _problems(cls: type, plain: Mapping[str, Any], flags: Sequence[Flag]) -> list[str]:
    """All that is wrong: a section tells its first problem only, so what caused one is left out to hear of the next."""
    try:
        from_dict(cls, set_flags(cls, plain, flags))
    except SchemaError as error:
        causes = [flag for flag in flags if len(flags) > 1 and {*_problems(cls, plain, [flag])} & {*error.problems}]
        others = [flag for flag in flags if flag not in causes]
        return [*dict.fromkeys([*error.problems, *(_problems(cls, plain, others) if causes else [])])]
    return []


def _refuse_overrides_without_effect(target: str, cls: type, overrides: Sequence[str]) -> None:
    """A comparison and a sweep choose their teachers themselves, and nothing else varies any."""
    fields = {ComparisonConfig: ("",), SweepConfig: ("m", "p", "g")}.get(cls, ())  # all cells have the same buffers
    for flag in overrides:
        if flag.startswith("--sweep.") and cls is not SweepConfig:
            remedy = "sweep one of its pipelines" if cls is ComparisonConfig else f"use sts sweep {target}"
            raise UsageError(f"{flag.partition('=')[0]} is a flag of sweeps, and {target} is none: {remedy}")
        if flag.startswith(tuple(f"--smoothing.{field}" for field in fields)):
            field = flag.removeprefix("--smoothing.").partition("=")[0]
            remedy = "sweep.momenta" if cls is SweepConfig else f"variants.NAME.{field}"
            raise UsageError(f"{target} trains several teachers, so {flag} has no effect: set --{remedy} instead")


def _load(target: str) -> tuple[type, dict[str, Any]]:
    load_records()
    if target in CATALOG:
        config = CATALOG[target].build()
        return type(config), to_dict(config)
    if target.endswith((".yaml", ".yml")) or Path(target).is_file():
        return _load_file(Path(target))
    near = difflib.get_close_matches(target, list(CATALOG), n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else "sts list prints all names"
    raise UsageError(f"no pipeline is called {target!r}: {hint}")


def _load_file(path: Path) -> tuple[type, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read as text: {error}") from error
    plain = read_yaml(text, source=str(path))
    told = _kind_by_sections(plain)
    kind = plain.pop("kind", told)
    if told != "pipeline" and kind in KINDS and kind != told:
        raise UsageError(
            f"{path} says kind: {kind}, but has a section of a {told}: write kind: {told}, or remove either"
        )
    if kind not in KINDS:
        raise UsageError(f"kind must be one of {', '.join(KINDS)}, got {kind!r} in {path}")
    return KINDS[kind], plain


def _kind_by_sections(plain: Mapping[str, Any]) -> str:
    """The kind of a file that does not say it: that of the one section which a pipeline has not."""
    return next(
        (kind for kind, section in (("comparison", "variants"), ("sweep", "sweep")) if section in plain), "pipeline"
    )
