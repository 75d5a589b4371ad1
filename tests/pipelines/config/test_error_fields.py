"""Checks of configs say which fields they are about, so that every problem of a config is found in one pass."""

from typing import Any

import pytest

from sts_core.errors import ConfigError
from sts_eval import FeatureConfig, LinearProbeConfig, NeighboursConfig
from sts_eval.detection import DetectionConfig
from sts_methods import ByolConfig, FixMatchConfig
from sts_methods.data.config import DataConfig
from sts_methods.training.config import TrainingConfig
from sts_methods.training.optimizers import OptimizerConfig
from sts_pipelines.config.cluster import ClusterConfig
from sts_pipelines.config.evaluation import EvaluationConfig
from sts_pipelines.config.reading import from_dict
from sts_pipelines.config.sweep import GridConfig
from sts_pipelines.errors import SchemaError

METHOD = ByolConfig(backbone="resnet10t")


@pytest.mark.parametrize(
    ("cls", "values", "fields"),
    [
        (TrainingConfig, {"method": METHOD, "steps": 1, "seed": -1}, ("seed",)),
        (TrainingConfig, {"method": METHOD}, ("epochs", "steps")),
        (TrainingConfig, {"method": METHOD, "steps": 1, "collapse_feature_std": -1.0}, ("collapse_feature_std",)),
        (DataConfig, {"image_size": 1}, ("image_size",)),
        (DataConfig, {"crop_scale_min": 2.0}, ("crop_scale_min",)),
        (OptimizerConfig, {"lr": -1.0}, ("lr",)),
        (FixMatchConfig, {"num_classes": 10, "threshold": 2.0}, ("threshold",)),
        (LinearProbeConfig, {"learning_rates": ()}, ("learning_rates",)),
        (LinearProbeConfig, {"solver": "ridge", "regularisations": ()}, ("regularisations",)),
        (NeighboursConfig, {"query_rows": 0}, ("query_rows", "bank_rows")),
        (FeatureConfig, {"batch_size": 0}, ("batch_size", "num_workers")),
        (DetectionConfig, {"data_root": "", "iterations": 10}, ("lr_steps", "iterations")),
        (ClusterConfig, {"num_workers": -1}, ("num_workers",)),
        (EvaluationConfig, {"voc_trials": 0}, ("voc_trials",)),
        (GridConfig, {"momenta": (2.0,)}, ("momenta",)),
    ],
)
def test_a_check_names_the_fields_it_is_about(cls: type, values: dict[str, Any], fields: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        cls(**values)
    assert caught.value.fields == fields


def test_problems_whose_messages_name_no_field_do_not_hide_each_other() -> None:
    with pytest.raises(SchemaError) as caught:
        from_dict(LinearProbeConfig, {"learning_rates": [-1.0], "epochs": 0, "seed": -1})
    assert [problem.split()[0] for problem in caught.value.problems] == ["the", "epochs,", "seed"]
