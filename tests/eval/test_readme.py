import re
import sys
from pathlib import Path

import pytest

from tests import processes

README = Path(__file__).parents[2] / "packages" / "sts-eval" / "README.md"


def test_the_examples_of_the_readme_run_and_print_what_they_say(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:2]  # the others: test_report_readme.py
    printed = []
    for block in blocks:
        done = processes.run([sys.executable, "-c", block], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    found = re.match(r"20-NN ([\d.]+)   L-BFGS ([\d.]+)   BYOL's protocol ([\d.]+) \(best ([\d.]+)\)", printed[0])
    assert found is not None
    assert all(float(number) > 80.0 for number in found.groups())
    assert printed[1].startswith("72.7\n")
    assert "(81.00 ± 2.48 (3 seeds))" in printed[1]
    assert "dataset cifar10 instead of imagenet" in printed[1]


def test_the_small_example_of_detection_runs(tmp_path):
    text = README.with_name("DETECTION.md").read_text()
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "synthetic" in block]
    config = "narrow_config(root, iterations=300)"  # minutes; a single iteration shows that it runs
    assert config in block
    short = block.replace(config, "replace(narrow_config(root, iterations=1), precise_bn_iterations=0)")
    short = f"from dataclasses import replace\n{short}print(result.backend, result.matched_tensors)"
    done = processes.run([sys.executable, "-c", short], cwd=tmp_path)
    assert done.stdout.split() == ["torchvision", "318"], done.stderr


def test_files_that_the_readme_links_exist():
    links = re.findall(r"\]\(([\w./-]+)\)", README.read_text())
    assert "DETECTION.md" in links
    assert all((README.parent / link).is_file() for link in links)


@pytest.mark.parametrize("name", re.findall(r"^\| `([a-z_]+)`", README.read_text(), re.MULTILINE))
def test_names_in_the_readme_exist(name):
    import sts_eval

    assert hasattr(sts_eval, name)
