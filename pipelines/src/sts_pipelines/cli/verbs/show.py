"""sts show: the complete config of a pipeline as YAML, with overrides applied.

Comments at its top give the command, the hardware, the hours and the result to expect. What it prints can be saved,
edited and given back: `sts run mine.yaml`. With --flags it lists every override instead. --json-schema prints what such
files may hold, for an editor (`# yaml-language-server: $schema=sts.schema.json` as the first line of a file).
"""

import argparse
import json

EXAMPLES = """  sts show byol-imagenet-200ep-sts
  sts show byol-digits-sts --smoothing.momentum 0.9 > mine.yaml
  sts show fixmatch-cifar10-40-sts --flags
  sts show --json-schema > sts.schema.json"""
TAKES_OVERRIDES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", nargs="?", help="a name of `sts list` or a YAML file")
    parser.add_argument("--json-schema", action="store_true", help="print the JSON Schema of all YAML files instead")
    parser.add_argument("--flags", action="store_true", help="list every override with its value and meaning")


def run(arguments: argparse.Namespace, overrides: list[str]) -> int:
    from sts_pipelines.catalog import CATALOG
    from sts_pipelines.cli.resolve import KINDS, resolve
    from sts_pipelines.config.flags import describe_flags
    from sts_pipelines.config.json_schema import json_schema
    from sts_pipelines.config.kinds import plain_of
    from sts_pipelines.config.plain import to_dict
    from sts_pipelines.config.yaml_text import write_yaml
    from sts_pipelines.errors import UsageError

    if arguments.json_schema:
        print(json.dumps(json_schema(*KINDS.values()), indent=1))
        return 0
    if arguments.pipeline is None:
        raise UsageError("sts show needs the name of a pipeline: sts list prints all names")
    config = resolve(arguments.pipeline, overrides)
    if arguments.flags:
        print(describe_flags(type(config), to_dict(config)))
    else:
        if arguments.pipeline in CATALOG:
            for line in CATALOG[arguments.pipeline].description.splitlines():
                print(f"# {line}".rstrip())
        print(write_yaml(plain_of(config)), end="")
    return 0
