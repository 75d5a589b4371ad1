"""A bank's record becomes a page: a table with each teacher's difference to its control, and plots."""

import json
import re
from pathlib import Path

import pytest
from torch import nn

from sts_core import BankRecord, ConfigError, StateError, TeacherBank, averages_and_fragments, temporal_moving_average
from sts_eval import read_averages, write_averages_report


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Of a bank whose networks are worth what their number is, and a tenth more at each measurement."""
    numbers = iter(range(100))
    bank = TeacherBank(student=nn.Linear(2, 2), configs=averages_and_fragments(0.99), seed=0)
    kept = BankRecord(
        bank, tmp_path / "averages.jsonl", lambda network: {"accuracy": next(numbers) + 50.0, "loss": 1.0}
    )
    for step in (100, 200):
        bank.step = step
        kept.measure()
    return kept.path


def test_all_networks_are_read_with_their_controls(record: Path) -> None:
    found = read_averages(record)
    assert [network.name for network in found.networks] == ["student", *averages_and_fragments(0.99)]
    assert (found.metrics, found.steps) == (("accuracy", "loss"), (100, 200))
    by_name = {network.name: network for network in found.networks}
    assert by_name["student"].values["accuracy"] == ((100, 50.0), (200, 59.0))
    assert by_name["SE layer"].last("accuracy") == 63.0
    controls = {name: control.name for name, network in by_name.items() if (control := found.control(network))}
    assert controls == dict.fromkeys(
        ["SE layer", "SE neuron", "STS layer", "STS channel", "STS neuron"], "average 0.99"
    )


def test_the_page_has_the_table_the_plots_and_says_that_it_is_one_seed(record: Path, tmp_path: Path) -> None:
    markdown, page = write_averages_report(record, tmp_path / "report")
    rows = [line for line in markdown.read_text().splitlines() if line.startswith("| ")]
    (layer,) = [row for row in rows if row.startswith("| SE layer |")]
    assert "| 0 | 0.99 | layers | 0.99 | 63 | 1 | +2.00 (one seed: no conclusion) |" in layer
    (average,) = [row for row in rows if row.startswith("| average 0.99 |")]
    assert average.endswith("| \N{EN DASH} | \N{EN DASH} |")
    text = page.read_text()
    assert text.count("<svg") == 2
    assert text.count('<path class="line') == 2 * 9
    assert "One seed: no conclusion" in text


def test_a_record_of_one_measurement_has_a_table_alone(record: Path, tmp_path: Path) -> None:
    record.write_text("\n".join(record.read_text().splitlines()[:10]) + "\n")
    _, page = write_averages_report(record, tmp_path / "report")
    assert "<svg" not in page.read_text()


def test_a_bank_without_the_control_shows_no_difference(tmp_path: Path) -> None:
    configs = averages_and_fragments(0.99)
    bank = TeacherBank(
        student=nn.Linear(2, 2), configs={"SE": configs["SE layer"], "a": temporal_moving_average(0.5)}, seed=0
    )
    kept = BankRecord(bank, tmp_path / "averages.jsonl", lambda network: {"accuracy": 1.0})
    kept.measure()
    found = read_averages(kept.path)
    assert all(found.control(network) is None for network in found.networks)
    assert "one seed: no conclusion)" not in write_averages_report(kept.path, tmp_path)[0].read_text()


@pytest.mark.parametrize(
    "content",
    ["", "no JSON", '{"format": "sts-results"}', "[]", '{"format": "sts-averages", "configs": {"a": {"momentum": 7}}}'],
)
def test_what_is_no_record_is_told_in_a_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "it.jsonl").write_text(content)
    with pytest.raises(
        StateError, match=r"it.jsonl must be the record of a bank, as BankRecord writes it, but it is not"
    ):
        write_averages_report(tmp_path / "it.jsonl", tmp_path / "report")
    with pytest.raises(StateError, match=r"cannot be read from .*other.jsonl: No such file"):
        write_averages_report(tmp_path / "other.jsonl", tmp_path / "report")
    assert not (tmp_path / "report").exists()


def test_an_empty_record_and_a_file_for_a_folder_are_told(record: Path, tmp_path: Path) -> None:
    head = json.loads(record.read_text().splitlines()[0])
    with pytest.raises(ConfigError, match=re.escape("a report is written into a folder")):
        write_averages_report(record, record)
    record.write_text(json.dumps(head) + "\n")
    with pytest.raises(StateError, match="in which nothing was measured yet"):
        write_averages_report(record, tmp_path / "report")
