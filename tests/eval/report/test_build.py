"""Reports from run folders: which sections, which numbers, and what happens with damaged input."""

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sts_core.errors import ConfigError
from sts_eval import add_entries, byol_protocol, fast_protocol, moco_protocol
from sts_eval.report.blocks import Delta, Table
from sts_eval.report.build import build_report, write_report
from sts_eval.report.html import to_html
from sts_eval.report.markdown import to_markdown
from sts_eval.report.runs import read_runs
from sts_eval.report.sections.figures import thinned
from tests.eval.report.conftest import MakeRun, anchors, changed, rows_of, table_of


class Checker(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_family_of_runs_has_every_section_it_has_data_for(family: Path) -> None:
    report = build_report(read_runs([family]))
    assert anchors(report) == [
        "runs",
        "paper",
        "control",
        "granularity",
        "results",
        "drift",
        "corruptions",
        "curves",
        "config",
    ]


def test_a_sweep_has_a_plane_and_no_curves(sweep: Path) -> None:
    report = build_report(read_runs([sweep]), against_paper=False)
    assert anchors(report) == ["runs", "plane", "control", "results", "config"]


def test_a_run_with_nothing_but_a_config_gets_a_report_of_that(make_run: MakeRun) -> None:
    report = build_report(read_runs([make_run("bare", top1=None, metrics=False)]))
    assert anchors(report) == ["runs"]
    assert "bare" in to_markdown(report)


def test_the_paper_is_left_out_on_request(family: Path) -> None:
    report = build_report(read_runs([family]), against_paper=False)
    assert "paper" not in anchors(report)
    assert "paper" not in " ".join(table_of(report, "granularity").header)


def test_the_paper_stands_beside_the_teachers_numbers_and_departures_are_named(family: Path) -> None:
    report = build_report(read_runs([family]))
    section = next(section for section in report.sections if section.anchor == "paper")
    tables = {block.caption.split(" (")[0]: block for block in section.blocks if isinstance(block, Table)}
    rows = rows_of(tables["STS against TMA"])
    sts = next(row for row in rows if row[2] == "sts")
    assert [sts[0], *sts[2:7]] == ["BYOL STS", "sts", "72.7", "72.75", "73.00", "+0.05 (one seed)"]
    assert sts[1].startswith("no: ")  # the test's entries do not record their protocol
    averages = {row[2]: row[4] for row in rows if row[0] == "BYOL TMA"}
    assert averages == {"tma": "71.50", "tma-matched": "72.25"}  # not one run repeated


def test_a_run_of_the_papers_recipe_on_a_folder_of_its_images_may_stand_beside_the_paper(make_run: MakeRun) -> None:
    folder = make_run("sts", m=0.99, p=0.7, top1=None, metrics=False)
    changed(folder, conditions={"dataset": "imagefolder"}, data={"dataset": "imagefolder"})
    entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "which": "best", "value": 72.6}
    entry |= {"num_train": 1_281_167, "num_test": 50_000, "protocol": asdict(byol_protocol())}
    entry |= {"cropped_from": "whole images"}
    add_entries(folder, [entry])
    assert rows_of(table_of(build_report(read_runs([folder])), "paper"))[0][1] == "yes"


def test_each_sts_run_stands_beside_the_moving_average_of_equal_pull(family: Path) -> None:
    rows = rows_of(table_of(build_report(read_runs([family])), "control"))
    assert rows[0][:3] == ["STS m 0.99, p 0.7 (LW)", "+0.50 (one seed: no conclusion)", "TMA m 0.997"]
    assert len(rows) == 3  # layer, channel, neuron


def test_runs_that_differ_in_more_than_their_smoothing_are_no_controls(make_run: MakeRun) -> None:
    sts, tma = make_run("sts", m=0.99, p=0.7), make_run("tma", m=0.997)
    changed(tma, recipe="another")
    assert "Without their control" in to_markdown(build_report(read_runs([sts, tma])))


def test_the_cost_of_granularity_is_the_ratio_of_speeds(family: Path) -> None:
    table = table_of(build_report(read_runs([family])), "granularity")
    cost = {row[0]: dict(zip(table.header, row, strict=True)) for row in rows_of(table)}
    neuron = cost["STS m 0.99, p 0.7 (NW)"]
    assert neuron["time"].startswith("2.00")
    assert neuron["time, paper"].startswith("1.82")
    assert cost["TMA m 0.99"]["time"].startswith("1.00")


def test_two_protocols_of_one_run_are_two_rows_and_never_stand_in_one_column(make_run: MakeRun) -> None:
    folders = [make_run(name, m=0.99, p=p) for name, p in (("tma", 0.0), ("sts", 0.7))]
    fast, moco = asdict(fast_protocol()), asdict(moco_protocol())
    entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "which": "last"}
    for folder, protocols in zip(folders, ({"fast": 40.0, "moco": 60.0}, {"moco": 61.0}), strict=True):
        (folder / "results.json").unlink()
        kinds = {"fast": fast, "moco": moco}
        add_entries(folder, [entry | {"value": v, "protocol": kinds[k]} for k, v in protocols.items()])
    report = build_report(read_runs(folders))
    assert [row[:3] for row in rows_of(table_of(report, "results"))] == [
        ["tma", "L-BFGS", "40.00"],
        ["tma", "SGD lr 30, 100 epochs, augmented", "60.00"],
        ["sts", "SGD lr 30, 100 epochs, augmented", "61.00"],
    ]
    overview = table_of(report, "runs")
    assert [row[1] for row in rows_of(overview)] == ["60.00", "61.00"]
    assert "linear evaluation (SGD lr 30, 100 epochs, augmented), teacher, top-1, last" in overview.note


def test_numbers_on_other_data_never_stand_in_the_column_of_the_trainings(make_run: MakeRun) -> None:
    folder = make_run("run", p=0.7, top1=None)
    own = {"dataset": "imagenet", "image_size": 224, "precision": "float32"}
    kinds = {"linear": {"protocol": asdict(fast_protocol())}, "few-labels": {}, "knn": {"k": 20}}
    for evaluation, details in kinds.items():
        entry = {"evaluation": evaluation, "network": "teacher", "metric": "top1", "which": "last", **details}
        add_entries(folder, [entry | {"value": 41.0, "data": own, "settings": "a"}])
        add_entries(folder, [entry | {"value": 42.0, "data": own, "settings": "b"}])
        add_entries(folder, [entry | {"value": 10.0, "data": own | {"image_size": 16}, "settings": "c"}])
    report = build_report(read_runs([folder]))
    section = next(section for section in report.sections if section.anchor == "results")
    linear, knn, few = (block for block in section.blocks if isinstance(block, Table))
    assert rows_of(linear) == [["run", "L-BFGS, image_size 16", "10.00"], ["run", "L-BFGS", "42.00"]]
    assert few.header[1:] == ["top-1, last, image_size 16", "top-1, last"]
    assert knn.header[1:] == ["top-1, k 20, image_size 16", "top-1, k 20"]
    assert rows_of(few) == rows_of(knn) == [["run", "10.00", "42.00"]]


def test_of_two_protocols_in_one_line_beside_the_paper_the_newest_is_shown(make_run: MakeRun) -> None:
    folder = make_run("sts", p=0.7, top1=None)
    entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "which": "last"}
    best = entry | {"which": "best"}
    old, new = (asdict(fast_protocol(regularisations=(value,))) for value in (1e-3, 1e-2))
    add_entries(folder, [entry | {"value": 40.0, "protocol": old}, best | {"value": 41.0, "protocol": old}])
    add_entries(folder, [entry | {"value": 80.0, "protocol": new}])
    row = rows_of(table_of(build_report(read_runs([folder])), "paper"))[0]
    assert [row[0], *row[2:6]] == ["BYOL STS", "sts", "72.7", "80.00", "+7.30 (one seed)"]


def test_the_plane_averages_seeds_and_names_the_best_cell(make_run: MakeRun, sweep: Path) -> None:
    make_run("again", m=0.9, p=0.9, seed=1, top1=79.9, metrics=False)
    report = build_report(read_runs([sweep]), against_paper=False)
    markdown = to_markdown(report)
    assert "74.90" in markdown  # (69.9 + 79.9) / 2
    assert "Highest: 74.90 at p 0.9, m 0.9 (m\\_eff 0.99; 2 seeds)" in markdown


def test_runs_of_another_recipe_are_no_further_seeds_of_a_cell(make_run: MakeRun, sweep: Path) -> None:
    folder = make_run("other", m=0.9, p=0.9, seed=1, top1=99.0, metrics=False)
    changed(folder, recipe="another")
    assert "Highest: 70.80 at p 0.9, m 0.99" in to_markdown(build_report(read_runs([sweep]), against_paper=False))


def test_a_report_is_not_written_over_or_below_a_file(make_run: MakeRun, tmp_path: Path) -> None:
    run, file = make_run("run"), tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "report"):
        with pytest.raises(ConfigError, match=r"a report is written into a folder, .*file is a file"):
            write_report([run], place)
    assert file.read_text() == "mine"


def test_config_differences_name_only_what_differs(family: Path) -> None:
    rows = rows_of(table_of(build_report(read_runs([family])), "config"))
    assert [row[0] for row in rows] == [
        "smoothing.momentum",
        "smoothing.preserve_probability",
        "smoothing.granularity",
    ]


def test_both_files_are_written_and_the_page_needs_nothing_but_itself(family: Path, tmp_path: Path) -> None:
    markdown, page = write_report([family], tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["report.html", "report.md"]
    html = page.read_text()
    checker = Checker()
    checker.feed(html)
    assert checker.open == []
    assert not any(tag in ("script", "link", "img", "iframe") for tag, _ in checker.seen)
    links = [
        value for _, attributes in checker.seen for value in (attributes.get("href"), attributes.get("src")) if value
    ]
    ids = {attributes.get("id") for _, attributes in checker.seen}
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", html)
    assert markdown.read_text().startswith("# 6 runs")


def test_tables_of_the_markdown_have_equally_many_cells_in_each_row(family: Path, tmp_path: Path) -> None:
    text = write_report([family], tmp_path / "out")[0].read_text()
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE)
    assert len(blocks) > 8
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_names_are_escaped_in_both_formats(make_run: MakeRun) -> None:
    folder = make_run("plain")
    name = "<img src=x onerror=alert(1)> *bold* `code` a|b"
    results = json.loads((folder / "results.json").read_text())
    (folder / "results.json").write_text(json.dumps(results | {"run": name}))
    report = build_report(read_runs([folder]))
    assert "<img" not in to_html(report)
    markdown = to_markdown(report)
    assert "\\<img" in markdown
    assert "\\*bold\\*" in markdown


def test_long_records_are_thinned_by_means_that_keep_the_ends_and_the_average() -> None:
    points = [(float(i), float(i % 7)) for i in range(5001)]
    short = thinned(points, 100)
    assert len(short) <= 100
    assert (short[0], short[-1]) == (points[0], points[-1])
    assert sum(y for _, y in short) / len(short) == pytest.approx(3.0, abs=0.1)
    assert thinned(points[:50], 100) == tuple(points[:50])


def test_a_difference_is_even_where_its_interval_holds_zero() -> None:
    assert Delta(0.4, 2, -0.1, 0.9).direction == "even"
    assert Delta(0.4, 2, 0.1, 0.9).direction == "gain"
    assert Delta(-0.4, 2, -0.9, -0.1).direction == "loss"
    assert Delta(-0.4).direction == "even"  # without an interval nothing is known


def test_many_runs_get_eight_colours_and_the_best_of_them(make_run: MakeRun) -> None:
    from sts_eval.report.sections.figures import colours_of, legend_of

    runs = read_runs([make_run(f"r{i:02}", top1=50.0 + i, metrics=False) for i in range(12)])
    colours = colours_of(runs)
    assert [name for name, colour in colours.items() if colour == 0] == ["r00", "r01", "r02", "r03"]
    assert sorted(colour for colour in colours.values() if colour) == list(range(1, 9))
    assert legend_of(runs, colours)[-1].name == "4 more runs"
    assert legend_of(runs[3:], colours)[-1].name == "1 more run"
