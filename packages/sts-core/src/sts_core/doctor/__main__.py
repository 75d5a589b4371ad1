"""The command: findings as lines; exit code 1 if something is wrong with an average, 2 if nothing can be examined."""

import argparse
import sys

from sts_core.doctor.examination import examine
from sts_core.errors import StsError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m sts_core.doctor",
        description="Finds student and average in a checkpoint, and says what is wrong with the average.",
        epilog="With a later checkpoint of the same run it also says whether the average moves, and which decay fits.",
    )
    parser.add_argument("checkpoint", help="a file or folder of torch, Lightning, transformers, diffusers, timm or sts")
    parser.add_argument("later", nargs="?", help="a later one of the same run")
    parser.add_argument("--steps", type=int, help="optimizer steps between the two, where they do not say it")
    arguments = parser.parse_args()
    try:
        findings = examine(arguments.checkpoint, arguments.later, steps=arguments.steps)
    except StsError as error:
        print(f"doctor: {error}", file=sys.stderr)
        return 2
    for finding in findings:
        print(finding)
    return int(any(finding.wrong for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
