import json
import os
from dataclasses import asdict

import pytest

from sts_core.errors import ConfigError, StateError
from sts_eval import RunResults, add_entries, fast_protocol, moco_protocol, read_results, write_results


def entry(**changes):
    base = {"evaluation": "linear", "network": "teacher", "metric": "top1", "value": 50.0, "which": "last"}
    return base | changes


def test_results_survive_writing_and_reading(tmp_path):
    results = RunResults(
        run="a", entries=(entry(), entry(network="student")), seed=3, paper={"table": "voc", "row": "Ours"}
    )
    file = write_results(tmp_path, results)
    assert file == tmp_path / "results.json"
    assert read_results(tmp_path) == read_results(file) == results
    content = json.loads(file.read_text())
    assert (content["format"], content["run"], len(content["entries"])) == ("sts-results", "a", 2)


def test_the_same_measurement_is_replaced_and_others_are_kept(tmp_path):
    add_entries(tmp_path, [entry(), entry(evaluation="knn", k=20)], run="a")
    results = add_entries(tmp_path, [entry(value=60.0), entry(evaluation="knn", k=200)])
    assert results == read_results(tmp_path)
    assert [(e["evaluation"], e.get("k"), e["value"]) for e in results.entries] == [
        ("linear", None, 60.0),
        ("knn", 200, 50.0),
        ("knn", 20, 50.0),
    ]


def test_two_protocols_of_one_network_are_two_measurements(tmp_path):
    moco, fast = asdict(moco_protocol()), asdict(fast_protocol())
    add_entries(tmp_path, [entry(protocol=moco), entry(protocol=fast, value=40.0)], run="a")
    results = add_entries(tmp_path, [entry(protocol=moco, value=60.0)])  # against lists, as the file holds them
    assert [(e["protocol"]["solver"], e["value"]) for e in results.entries] == [("sgd", 60.0), ("lbfgs", 40.0)]
    results = add_entries(tmp_path, [entry(protocol=fast, value=41.0)])
    assert [e["value"] for e in results.entries] == [41.0, 60.0]  # the newest is the first that a reader finds


def test_the_order_of_the_entries_in_the_file_means_nothing(tmp_path):
    add_entries(tmp_path, [entry(evaluation="knn", k=20), entry(evaluation="knn", k=1)], run="a")
    add_entries(tmp_path, [entry(evaluation="knn", k=200)])
    results = read_results(tmp_path)
    assert [e["k"] for e in results.entries] == [200, 20, 1]
    content = json.loads((tmp_path / "results.json").read_text())
    content["entries"].sort(key=lambda one: one["k"])
    (tmp_path / "results.json").write_text(json.dumps(content))
    assert read_results(tmp_path) == results


def test_of_a_file_of_earlier_versions_the_first_entry_is_the_last_asked_for(tmp_path):
    entries = [entry(evaluation="knn", k=k) for k in (200, 20, 1)]
    (tmp_path / "results.json").write_text(json.dumps({"format": "sts-results", "run": "a", "entries": entries}))
    assert list(read_results(tmp_path).entries) == entries
    preferred = read_results(tmp_path).preferring(lambda one: one["k"] == 20)
    write_results(tmp_path, preferred)
    assert [e["k"] for e in read_results(tmp_path).entries] == [20, 200, 1]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    add_entries(tmp_path, [entry()], run="a")
    before = (tmp_path / "results.json").read_bytes()

    def fails(*arguments):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        add_entries(tmp_path, [entry(value=1.0)])
    assert (tmp_path / "results.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize("bad", [{"value": float("nan")}, {"value": "x"}, {"value": True}, {"evaluation": "lineal"}])
def test_entries_that_say_nothing_are_refused(bad):
    with pytest.raises(ConfigError):
        RunResults(run="a", entries=(entry(**bad),))


def test_an_entry_without_its_keys_is_refused():
    with pytest.raises(ConfigError, match="network is missing"):
        RunResults(run="a", entries=({k: v for k, v in entry().items() if k != "network"},))


def test_absent_damaged_and_foreign_files_are_one_sentence(tmp_path):
    with pytest.raises(StateError, match="does not exist"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(StateError, match="must be JSON"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(StateError, match="sts-results"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": None}, "run in .*results.json must be a str, got None"),
        ({"entries": {"a": 1}}, "entries in .*results.json must be a list"),
        ({"entries": [1]}, "results.json holds an entry that is no result: .* must hold named values, got 1"),
        ({"entries": [{"evaluation": "knn"}]}, "results.json holds an entry that is no result: .* is missing"),
        ({"paper": "voc"}, "paper in .*results.json must be a dict"),
    ],
)
def test_a_file_of_the_format_with_other_content_is_named(tmp_path, changes, message):
    content = {"format": "sts-results", "run": "a", "entries": [entry()]} | changes
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(StateError, match=message):
        read_results(tmp_path)
