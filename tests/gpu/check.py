"""python -m tests.gpu.check [REPORT.md] (ci/gpu-check): what only GPUs can tell, tried on those of this machine.

Runs the checks of `gpu_checks.py` and of the kernels, and writes the outcome and the numbers they found into one file.
"""

import platform
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
CHECKS = (HERE / "gpu_checks.py", HERE.parent / "core" / "kernels" / "triton_checks.py")
NOTHING_COMPUTED = "needs kernels that compute, and this GPU is a null GPU"


class Report:
    """Listens to pytest, and leaves out what needs results where nothing computes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[str] = []
        self.failures: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if computes():
            return
        for item in items:
            if "computes" in item.keywords or item.path == CHECKS[1]:
                item.add_marker(pytest.mark.skip(NOTHING_COMPUTED))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        name = report.nodeid.rpartition("::")[2]
        reason = f": {report.longrepr[2]}" if report.skipped and isinstance(report.longrepr, tuple) else ""
        self.lines.append(f"| {name} | {report.outcome}{reason} | {report.duration:.1f} s |")
        self.numbers += [f"- {what}: {value}" for what, value in report.user_properties]
        if report.failed:
            self.failures.append(f"### {name}\n\n```\n{report.longreprtext[-4000:]}\n```")

    def text(self) -> str:
        machine = f"{platform.platform()}, Python {platform.python_version()}"
        parts = ["# GPU check", machine, "## Numbers", "\n".join(self.numbers), "## Checks"]
        parts += ["\n".join(["| check | outcome | time |", "|---|---|---|", *self.lines])]
        return "\n\n".join([*parts, *(["## Failures", *self.failures] if self.failures else [])]) + "\n"


def computes() -> bool:
    """Whether kernels do anything: on a null GPU they are only counted."""
    return bool((torch.ones(3, device="cuda") + 1).tolist() == [2.0] * 3)


def main(arguments: list[str]) -> int:
    if not torch.cuda.is_available():
        print("There is nothing to check: torch sees no GPU on this machine.", file=sys.stderr)
        return 1
    path, report = Path(arguments[0] if arguments else "gpu-check.md"), Report()
    # Here a warning is no error: the first night on new hardware must end with all that can be known.
    markers = "markers=computes: needs kernels that compute"
    options = ["-W", "default", "-p", "no:cacheprovider", "-o", markers]
    code = pytest.main([*map(str, CHECKS), *options], plugins=[report])
    path.write_text(report.text())
    print(f"please send {path.resolve()} back: it holds the numbers and every failure", file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
