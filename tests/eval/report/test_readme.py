"""The examples of the README on corruptions and reports run as they stand."""

import re
import sys
from pathlib import Path

from tests import processes

README = Path(__file__).parents[3] / "packages" / "sts-eval" / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def run(block: str, folder: Path) -> str:
    done = processes.run([sys.executable, "-c", block], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example_on_corruptions_runs(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if "corruption_robustness" in block]
    printed = run(block, tmp_path)
    assert re.match(r"mean over cells [\d.]+, by severity \{1: ", printed)
    assert "Difference(value=" in printed
    assert (tmp_path / "corrupted" / "fog" / "5.npy").is_file()


def test_the_example_on_reports_runs(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if "write_report" in block]
    run(block, tmp_path)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "72.70" in text
    assert (tmp_path / "report" / "report.html").is_file()
