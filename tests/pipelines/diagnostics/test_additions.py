"""What somebody else registered is checked, written, read and listed like what is ours."""

from dataclasses import replace
from pathlib import Path

import pytest

from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.flags import describe_flags
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import to_dict
from sts_pipelines.config.yaml_text import write_yaml
from sts_pipelines.diagnostics.dry_run import check_pipeline
from sts_pipelines.errors import SchemaError, UsageError
from tests.methods.additions import added


def test_a_method_and_a_dataset_of_others_go_through_a_file_the_checks_and_the_help(tmp_path: Path) -> None:
    base = CATALOG["byol-digits-sts"].build()
    assert isinstance(base, PipelineConfig)
    with added(tmp_path) as module:
        data = replace(base.training.data, dataset="stripes", views="three", image_size=8)
        training = replace(base.training, method=module.AgreementConfig(), data=data, global_batch_size=8)
        config = replace(base, training=training)
        file = tmp_path / "mine.yaml"
        file.write_text(write_yaml(plain_of(config)))
        assert "kind: all_agree" in file.read_text()
        assert resolve(str(file), ["--method.kind", "all_agree"]) == config
        text = check_pipeline(config, placement=False)
        assert "4 an epoch of 32 images" in text
        assert "check passed" in text
        told = describe_flags(PipelineConfig, to_dict(config)).replace("\n    ", " ")
        assert "webdataset (tar shards, in a folder or s3://), stripes (drawn)." in told
        with pytest.raises(UsageError, match="all_agree trains none"):
            check_pipeline(resolve(str(file), ["--evaluation.after-training", "few-labels"]), placement=False)
    with pytest.raises(SchemaError, match=r"method\.kind must be one of byol, .*, got 'all_agree'"):
        resolve(str(file))
