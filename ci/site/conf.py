"""The site of `ci/docs`: READMEs and guides as they lie in the repository, and pages made from the code.

Its pages are found, not listed: every README, and every guide in a `docs` folder. What Sphinx needs beyond them, the
tables of contents and the reference, is added while they are read, so that they stay plain where GitHub shows them.
"""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from reference import read_docstring, write_pages

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "packages/sts-core": "sts_core",
    "packages/sts-methods": "sts_methods",
    "packages/sts-eval": "sts_eval",
    "pipelines": "sts_pipelines",
}
ABOUT = (".github/CONTRIBUTING.md", ".github/CHANGELOG.md", "tests/null_gpu/README.md")

project, author, html_title, root_doc = "STS", "the STS developers", "STS", "README"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = [
    "README.md",
    *ABOUT,
    *(f"{package}/{pages}" for package in PACKAGES for pages in ("README.md", "docs/*.md")),
    "pipelines/results/*/*.md",
    "site/reference/*.md",
]
exclude_patterns = [".venv*", "site/html", "site/doctrees"]
html_theme, html_static_path, html_css_files = "furo", ["static"], ["pages.css"]
html_show_sourcelink = html_copy_source = False
default_role = "code"  # docstrings have `name` in single backticks
autodoc_typehints = "signature"
autodoc_mock_imports = ["lightning", "transformers", "lightly"]
add_module_names = False
autodoc_member_order = "bysource"
maximum_signature_line_length = 100
myst_heading_anchors = 4

write_pages(ROOT / "site" / "reference", list(PACKAGES.values()))


def contents(page: str) -> dict[str, list[str]]:
    """The pages below a page, by caption."""
    if page == "README":
        return {"Packages": [f"{package}/README" for package in PACKAGES], "About": [_without_suffix(p) for p in ABOUT]}
    package = page.removesuffix("/README")
    if package not in PACKAGES or not page.endswith("/README"):
        return {}
    reference = [PACKAGES[package], *(("commands", "catalog") if package == "pipelines" else ())]
    results = sorted((ROOT / package).glob("results/*/*.md"))
    guides = [*sorted((ROOT / package).glob("docs/*.md")), *results]
    found = [str(guide.relative_to(ROOT)) for guide in guides]
    return {"": [*map(_without_suffix, found), *(f"site/reference/{name}" for name in reference)]}


def _without_suffix(page: str) -> str:
    return page.removesuffix(".md")


def add_contents(app: Any, page: str, source: list[str]) -> None:
    """Appends the tables of contents that the sidebar shows."""
    for caption, pages in contents(page).items():
        options = [":hidden:", *([f":caption: {caption}"] if caption else [])]
        source[0] += "\n".join(["\n", "```{toctree}", *options, "", *(f"/{name}" for name in pages), "```", ""])


def setup(app: Any) -> None:
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", read_docstring)
