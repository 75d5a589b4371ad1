"""`data.views` was called `data.recipe`: flags, files and runs of that time are still understood."""

from pathlib import Path

import pytest

from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.resolve import resolve
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.yaml_text import write_yaml
from sts_pipelines.errors import SchemaError


def pipeline(target: str, *flags: str) -> PipelineConfig:
    config = resolve(target, flags)
    assert isinstance(config, PipelineConfig)
    return config


@pytest.fixture
def old_file(tmp_path: Path) -> str:
    text = write_yaml(plain_of(CATALOG["byol-digits-sts"].build())).replace("  views: byol", "  recipe: moco")
    assert "recipe: moco" in text
    (tmp_path / "old.yaml").write_text(text)
    return str(tmp_path / "old.yaml")


def test_a_flag_of_the_former_name_sets_the_views() -> None:
    assert pipeline("byol-digits-sts", "--data.recipe", "moco").training.data.views == "moco"
    with pytest.raises(SchemaError, match=r"data\.views must be one of byol, .*, got 'mocoo': did you mean moco"):
        resolve("byol-digits-sts", ["--data.recipe", "mocoo"])


def test_a_file_of_the_former_name_sets_the_views_and_a_flag_goes_before_it(old_file: str) -> None:
    assert pipeline(old_file).training.data.views == "moco"
    assert pipeline(old_file, "--data.views", "byol").training.data.views == "byol"


def test_a_run_folder_keeps_the_name_that_it_had_before_the_renaming() -> None:
    assert pipeline("byol-digits-sts", "--steps", "40").run_name == "byol-digits-sts-0c4d3da8"
