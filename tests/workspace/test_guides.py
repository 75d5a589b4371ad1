"""Every block of code in every README and guide runs, is read, or says why not."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.workspace.guides import LANGUAGES, PAGES, ROOT, blocks, commands

WITH_PYTHON = [page for page in PAGES if any(block.runs for block in blocks(page, "python"))]
SLOW = ("hosts", "own-images", "resume", "few-labels", "judge", "detection")


def param(page: str) -> object:
    others = pytest.mark.filterwarnings("default")  # Lightning and transformers warn when they are imported
    slow = [pytest.mark.slow] if Path(page).stem in SLOW else []
    return pytest.param(page, marks=[*slow, *([others] if page.endswith("hosts.md") else [])])


@pytest.mark.parametrize("page", [param(page) for page in WITH_PYTHON])
def test_the_python_of_a_page_runs_in_order(
    page: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__guide__"}
    for block in blocks(page, "python"):
        if block.runs:
            names |= {name: request.getfixturevalue(name) for name in block.given}
            exec(compile("\n" * block.line + block.code, ROOT / page, "exec"), names)
    assert len(names) > 2


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_code_that_nobody_tries(page: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^    (?:sts|import|from|python|pip|ci/)\b.*", text, re.MULTILINE), "fence it"
    for block in blocks(page):
        assert block.language in LANGUAGES, f"{page}:{block.line}: say which language it is, or text"
        assert block.runs or len(block.notes["not run"]) > 3
        if block.language == "bash" and block.runs:
            others = [line for line in commands(block) if not line.startswith("sts ")]
            assert not others, f"{page}:{block.line}: only `sts` runs: <!-- not run: WHY --> for the others"
        if reader := {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}.get(block.language):
            assert reader(block.code)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_exists(page: str) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", (ROOT / page).read_text())
    assert not [link for link in links if not (ROOT / page).parent.joinpath(link).exists()]
