"""How far features lie from their mean."""

from collections.abc import Sequence
from typing import Any

from sts_eval import Evaluation, Metric
from sts_pipelines import EvaluationRecord, register_evaluation


def measure(run: Any, networks: Sequence[str]) -> list[dict[str, Any]]:
    """The standard deviation of the test images' features, of each network."""
    about = {"evaluation": "spread", "metric": "spread", "which": "last"}
    return [{**about, "network": name, "value": float(run.features(name)[1].values.std())} for name in networks]


ABOUT = Evaluation(
    name="spread", title="Spread of features", column="spread", metrics=(Metric("spread", "spread", ""),)
)
register_evaluation(EvaluationRecord(about=ABOUT, measure=measure))
