"""Tables for the terminal."""

from typing import Any

import pytest

from sts_pipelines.terminal import caveats, format_table


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, []),
        (
            {"selected_on": "held-out", "protocol": {"held_out_fraction": 0.1}},
            ["linear: one of several classifiers, chosen on 10% of the training images"],
        ),
        (
            {"network": "untrained"},
            ["untrained: the network that a run starts from; a row shows whether training adds to it, no more"],
        ),
        ({"selected_on": "test"}, ["linear: one of several classifiers, chosen on the test labels (optimistic)"]),
    ],
)
def test_a_table_says_that_each_row_is_one_seed_and_how_a_penalty_was_chosen(
    facts: dict[str, Any], told: list[str]
) -> None:
    entry = {"evaluation": "linear", "network": "teacher", "metric": "top1", "value": 88.3, "which": "last", **facts}
    assert caveats({"run": [entry]}) == ["one seed each: a difference needs several to mean something", *told]


def test_a_table_with_the_untrained_network_fits_into_80_columns() -> None:
    names = ("teacher", "student", "untrained")
    keys = {"metric": "top1", "which": "last", "value": 88.3}
    rows = [{"evaluation": kind, "network": network, **keys} for kind in ("linear", "knn") for network in names]
    wide = format_table({"none": rows}).splitlines()
    assert wide[0].split("  ")[-1] == "k-NN untrained"
    assert format_table({"none": rows}, width=len(wide[0])).splitlines() == wide
    narrow = format_table({"none": rows}, width=79).splitlines()
    assert narrow[0].split() == ["linear"] * 3 + ["k-NN"] * 3
    assert [line.split() for line in narrow[1:]] == [["run", *names, *names], wide[1].split()]
    assert len(wide[0]) > 79 >= max(map(len, narrow))
