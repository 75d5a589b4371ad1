"""What editors are told of YAML files is what `sts run` accepts."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from sts_pipelines.catalog import CATALOG
from sts_pipelines.cli.main import main
from sts_pipelines.cli.resolve import KINDS
from sts_pipelines.config.json_schema import json_schema
from sts_pipelines.config.kinds import plain_of
from sts_pipelines.config.yaml_text import write_yaml


@pytest.fixture(scope="module")
def check() -> Any:
    schema = json_schema(*KINDS.values())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", ["quickstart", "byol-imagenet-200ep-sts", "fixmatch-digits-p-by-m"])
def test_files_that_sts_writes_are_valid(check: Any, name: str) -> None:
    assert not list(check.iter_errors(yaml.safe_load(write_yaml(plain_of(CATALOG[name].build())))))


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [("smoothing", "granularity", "filter"), ("data", "image_siz", 32), ("cluster", "num_workers", "two")],
)
def test_a_wrong_value_or_name_is_not(check: Any, section: str, field: str, value: Any) -> None:
    plain = json.loads(json.dumps(plain_of(CATALOG["byol-digits-sts"].build())))
    assert check.is_valid(plain)
    plain[section][field] = value
    assert not check.is_valid(plain)


def test_former_names_are_valid(check: Any) -> None:
    plain = json.loads(json.dumps(plain_of(CATALOG["byol-digits-sts"].build())))
    plain["data"]["recipe"] = plain["data"].pop("views")
    assert check.is_valid(plain)


def test_sts_show_prints_it_with_the_line_under_each_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--json-schema"]) == 0
    pipeline = json.loads(capsys.readouterr().out)["anyOf"][0]
    assert pipeline["properties"]["cluster"]["properties"]["use_gpu"]["description"].startswith("One GPU per worker")
    assert main(["show"]) == 2
    assert capsys.readouterr().err == "sts: sts show needs the name of a pipeline: sts list prints all names\n"
