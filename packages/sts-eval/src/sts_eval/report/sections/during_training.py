"""The section of a report on what was measured while the networks trained."""

from collections.abc import Sequence

from sts_eval.evaluations import registered_evaluations
from sts_eval.report.blocks import Code, Figure, Section, Table, TableValue, percent
from sts_eval.report.charts.svg import Series, line_chart
from sts_eval.report.runs import Run, is_measured
from sts_eval.report.sections.figures import colours_of, legend_of

NOTE = "Quick forms of the evaluations on a part of the images, for the curve; the numbers to compare are results."


def during_training_section(runs: Sequence[Run]) -> Section | None:
    """Accuracies over the epochs, one drawing for each evaluation and network."""
    kept = [run for run in runs if any(is_measured(name) for line in run.metrics for name in line)]
    if not kept:
        return None
    colours = colours_of(runs)
    drawings: list[tuple[str, str]] = []
    rows: list[list[TableValue]] = []
    for name in sorted(
        {name for run in kept for line in run.metrics for name in line if is_measured(name)}, key=_place
    ):
        series = [Series(run.name, tuple(run.series(name, over="epoch")), colours[run.name]) for run in kept]
        lines = [line for line in series if line.points]
        if any(len(line.points) > 1 for line in lines):
            drawings.append((_title(name), line_chart(lines, label=_title(name), x_label="epoch")))
        rows += [_row(line, _title(name)) for line in lines]
    table = Table(["run", "evaluation", "epochs", "last", "highest"], rows, numeric=frozenset({2, 3, 4}))
    figure = Figure("Accuracy during training, in percent", drawings, legend_of(kept, colours), table, NOTE)
    return Section("during-training", "During training", [figure])


def _row(line: Series, title: str) -> list[TableValue]:
    epoch, last = line.points[-1]
    return [Code(line.name), title, f"{epoch:g}", percent(last), percent(max(value for _, value in line.points))]


def _place(name: str) -> tuple[int, str]:
    """Evaluations in the order of tables, teachers before students."""
    evaluation, network, number = name.split("/")
    known = [one.name for one in registered_evaluations()]
    return (
        known.index(evaluation) if evaluation in known else len(known),
        f"{network != 'teacher'} {network} {number}",
    )


def _title(name: str) -> str:
    """`Nearest neighbours, teacher, top-1`."""
    evaluation, network, number = name.split("/")
    about = next((one for one in registered_evaluations() if one.name == evaluation), None)
    return name if about is None else f"{about.title}, {network}, {about.metric(number).title}"
