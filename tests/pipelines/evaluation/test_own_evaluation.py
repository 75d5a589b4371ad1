"""An evaluation of another package: one module with a record, and everything else follows."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sts_core import ConfigError
from sts_eval import Evaluation, Metric, evaluations, read_results, register_evaluation
from sts_pipelines.cli.main import main
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.evaluation import record
from sts_pipelines.launch.driver import launch
from sts_pipelines.launch.job import jobs_of

MODULE = """
from dataclasses import dataclass

from sts_eval import Evaluation, Metric
from sts_pipelines.evaluation.record import EvaluationRecord, register_evaluation

@dataclass(frozen=True, kw_only=True)
class SpreadConfig:
    power: float = 1.0
    \"\"\"Power of the norms.\"\"\"

def measure(run, networks):
    power = run.config.own["feature_spread"].power
    return [
        {"evaluation": "feature-spread", "network": name, "metric": "spread", "which": "last", "power": power,
         "value": float(run.features(name)[1].values.norm(dim=1).pow(power).std())}
        for name in networks
    ]

ABOUT = Evaluation(
    name="feature-spread", title="Spread of features", column="spread", metrics=(Metric("spread", "spread", "units"),),
    config=SpreadConfig, required=("power",), identity=("power", "data"),
)
register_evaluation(EvaluationRecord(about=ABOUT, measure=measure))
"""


@pytest.fixture
def own_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of another package that registers an evaluation, forgotten afterwards."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "spread_of_features.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setattr(evaluations, "_REGISTERED", dict(evaluations._REGISTERED))
    monkeypatch.setattr(record, "_RECORDS", dict(record._RECORDS))
    importlib.import_module("spread_of_features")
    yield
    sys.modules.pop("spread_of_features")


@pytest.mark.slow
@pytest.mark.usefixtures("own_evaluation")
def test_a_registered_evaluation_is_in_flags_configs_results_tables_and_the_report(
    tiny: Callable[..., PipelineConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "byol-digits-sts", "--flags"]) == 0
    assert "--evaluation.feature-spread.power  (1.0)\n    Power of the norms." in capsys.readouterr().out
    asked = ["--evaluation.after-training", "feature-spread", "--evaluation.feature-spread.power", "2"]
    assert main(["show", "byol-digits-sts", *asked]) == 0
    assert "  feature_spread:\n    power: 2.0\n" in capsys.readouterr().out
    pipeline = tiny("byol-digits-sts", steps=1)
    pipeline = replace(pipeline, evaluation=replace(pipeline.evaluation, after_training=("feature-spread",)))
    launch(jobs_of(pipeline), name=pipeline.run_name, folder=pipeline.folder)
    capsys.readouterr()
    for _ in range(2):  # the second time there is nothing left to measure
        assert main(["evaluate", str(pipeline.folder), "--evaluation.feature-spread.power", "2"]) == 0
    assert "spread teacher  spread student" in capsys.readouterr().out
    entries = read_results(pipeline.folder).entries
    assert [(entry["network"], entry["power"]) for entry in entries] == [
        *(("student", 2.0), ("teacher", 2.0), ("student", 1.0), ("teacher", 1.0))
    ]
    assert main(["report", str(pipeline.folder)]) == 0
    report = (pipeline.folder / "report" / "report.md").read_text()
    assert "Spread of features" in report
    assert "spread, last, power 2" in report


@pytest.mark.usefixtures("own_evaluation")
def test_a_wrong_setting_of_a_registered_evaluation_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "byol-digits-sts", "--evaluation.feature-spread.powr", "2"]) == 2
    assert "did you mean evaluation.feature_spread.power?" in capsys.readouterr().err
    assert main(["show", "byol-digits-sts", "--evaluation.feature-spread.power", "much"]) == 2
    assert "evaluation.feature_spread.power must be a number" in capsys.readouterr().err


def test_an_evaluation_that_nobody_registered_is_refused() -> None:
    with pytest.raises(ConfigError, match="got 'linaer': did you mean linear"):
        EvaluationConfig(after_training=("linaer",))
    with pytest.raises(ConfigError, match="got 'drift'"):  # training records it
        EvaluationConfig(after_training=("drift",))


def test_two_evaluations_cannot_share_a_name() -> None:
    with pytest.raises(ConfigError, match="name of its own, but 'knn' is Nearest neighbours"):
        register_evaluation(Evaluation(name="knn", title="x", column="x", metrics=(Metric("top1", "top-1"),)))
