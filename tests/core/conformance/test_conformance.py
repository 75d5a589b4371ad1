"""The table of packages/sts-core/docs/conformance.md: our row holds, and so do the others in their versions."""

from importlib.metadata import version
from pathlib import Path

import pytest

from tests.core.conformance import __main__ as conformance
from tests.core.conformance import ranks
from tests.core.conformance.hosts import HOSTS, Ours, is_installed
from tests.core.conformance.probes import BY_RANKS, PROBES, Cell, probe

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Cell]:
    installed = [title for title, host in HOSTS.items() if is_installed(host)]
    return dict(ranks.cells(installed, tmp_path_factory.mktemp("ranks")))


@pytest.mark.parametrize("title", list(HOSTS))
def test_the_table_says_what_the_probes_find(title: str, by_ranks: dict[tuple[str, str], Cell], tmp_path: Path) -> None:
    host = HOSTS[title]
    if not is_installed(host):
        pytest.skip(f"{host.package} is not installed")
    row = conformance.written()[title]
    if host is not Ours and row["version"] != version(host.package):
        pytest.skip(f"the table is of another version of {host.package}: run ci/bench conformance")
    cells = {name: by_ranks[title, name] if name in BY_RANKS else probe(host, name, tmp_path) for name in PROBES}
    assert {name: cell.verdict for name, cell in cells.items()} == {name: row[name] for name in PROBES}, cells
    if host is Ours:
        assert {cell.verdict for cell in cells.values()} == {"ok"}
