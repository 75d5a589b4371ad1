"""Tables for the terminal."""

from typing import Any

import pytest

from sts_pipelines.terminal import caveats


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
