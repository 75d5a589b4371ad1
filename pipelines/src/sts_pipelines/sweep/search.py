"""Points that a search algorithm chooses by what the points before have reached, in rounds of as many as fit at a time.

The points of a sweep are in a file of its folder, and what they reached is in their runs' folders: the algorithm is
told all of it before each round. So a killed search resumes where it was, and one with more samples adds to it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sts_core.files import write_atomically
from sts_pipelines.config.plain import digest, to_dict
from sts_pipelines.config.sweep import AXES, GridConfig, SweepConfig
from sts_pipelines.errors import UsageError
from sts_pipelines.sweep.outcomes import value_in
from sts_pipelines.sweep.trials import Trial, distinct, point_of, trials_at

Drawn = Mapping[str, float]
"""What the algorithm chooses: numbers in [0, 1] for m and p, positions in the lists of values for the rest."""


class Search:
    """The points that `config.sweep.search` has chosen so far, and the next ones."""

    def __init__(self, config: SweepConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.lists = lists_of(config.sweep)
        grid = config.sweep
        asked = {
            "search": grid.search,
            "coordinates": grid.coordinates,
            "metric": grid.metric,
            "over": self.lists,
            "seeds": grid.seeds,
            "seed": config.pipeline.training.seed,
        }
        self.file = folder / f"points-{digest(asked)}.json"
        self.points: list[Drawn] = self._read()
        self._made: dict[str, list[Trial]] = {}

    def _read(self) -> list[Drawn]:
        try:
            points = json.loads(self.file.read_text()) if self.file.is_file() else []
            return [{name: float(drawn[name]) for name in ("first", "second", *self.lists)} for drawn in points]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise UsageError(f"the points of this search in {self.file} are damaged: remove it, runs stay") from error

    def trials(self) -> list[Trial]:
        """The trials of all points so far, of each with every seed."""
        return distinct(trial for drawn in self.points for trial in self.trials_of(drawn))

    def trials_of(self, drawn: Drawn) -> list[Trial]:
        """The trials of one point, made once: a config is read for each."""
        key = json.dumps(drawn, sort_keys=True)
        if key not in self._made:
            self._made[key] = self._made_of(drawn)
        return self._made[key]

    def _made_of(self, drawn: Drawn) -> list[Trial]:
        chosen = {name: values[int(drawn[name])] for name, values in self.lists.items()}
        return trials_at(self.config, *point_of(self.config.sweep, drawn["first"], drawn["second"], chosen))

    def value_of(self, drawn: Drawn) -> float | None:
        """The mean over seeds of what ranks trials; None while one of them has no result."""
        values = [value_in(self.folder / trial.name, self.config.sweep.metric) for trial in self.trials_of(drawn)]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known and len(known) == len(values) else None

    @property
    def num_left(self) -> int:
        """How many of the `num_samples` points have not been chosen yet."""
        return self.config.sweep.num_samples - len(self.points)

    def more(self, num_trials: int) -> list[Trial]:
        """The trials of new points, about so many; none when all `num_samples` points have been chosen."""
        num = max(1, num_trials // max(1, len(self.config.sweep.seeds)))
        num = min(num, self.num_left)
        if num <= 0:
            return []
        algorithm = self._algorithm()
        new = [algorithm.suggest(f"next-{number}") for number in range(num)]
        self.points += new
        write_atomically(self.file, json.dumps(self.points) + "\n")
        return distinct(trial for drawn in new for trial in self.trials_of(drawn))

    def _algorithm(self) -> Any:
        """Ray Tune's, told what is known. Its draws are a function of the seed and the number of points before."""
        from ray import tune
        from ray.tune.search import create_searcher

        space: dict[str, Any] = {name: tune.choice(list(range(len(values)))) for name, values in self.lists.items()}
        space |= {name: tune.uniform(0.0, 1.0) for name in ("first", "second")}
        try:
            import optuna  # Ray Tune's algorithm of that name stands on it

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            algorithm = create_searcher(
                self.config.sweep.search, seed=self.config.pipeline.training.seed % 2**16 * 2**16 + len(self.points)
            )
        except (AssertionError, ImportError) as error:
            package = self.config.sweep.search
            raise UsageError(
                f"sweep.search {package} needs the package {package}: pip install sts-pipelines[{package}]"
            ) from error
        algorithm.set_search_properties(metric="value", mode="max", config=space)
        for drawn in self.points:
            if (value := self.value_of(drawn)) is not None:
                algorithm.add_evaluated_point(dict(drawn), value)
        return algorithm


def lists_of(grid: GridConfig) -> dict[str, Sequence[Any]]:
    """The fields of which a search chooses one of several values, with these; granularities by their field's name."""
    lists: dict[str, Sequence[Any]] = {AXES[2]: grid.granularities, **to_dict(grid)["over"]}
    return {name: list(values) for name, values in lists.items()}
