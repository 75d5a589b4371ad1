import hashlib
from collections import Counter

import pytest

from sts_core.errors import ConfigError
from sts_eval import PUBLISHED, published, published_rows
from sts_eval.paper.numbers import TABLES

# Counted by hand on the printed pages; "fail" cells included, "-" cells not.
COUNTS = {
    "effect-of-se": 8,  # 4 rows x 2
    "effect-of-sts": 8,  # 4 rows x 2
    "state-of-the-art": 48,  # 21 top-1, 8 top-5, 19 epochs
    "granularity": 14,  # 7 rows x 2
    "voc": 21,  # 7 rows x 3
    "few-labels": 46,  # 3 rows of 4, 3 of 6, 2 of 8
    "text": 109,
}

# Sums of each column in hundredths, added up by hand: a digit that is off by one shows here.
SUMS = {
    ("effect-of-se", "top-1"): 13450,
    ("effect-of-se", "top-5"): 17530,
    ("effect-of-sts", "top-1"): 27980,
    ("effect-of-sts", "top-5"): 35760,
    ("granularity", "top-1"): 50030,
    ("granularity", "time"): 864,
    ("voc", "AP50"): 57300,
    ("voc", "AP"): 39090,
    ("voc", "AP75"): 43150,
    ("few-labels", "CIFAR-10 20"): 17999,
    ("few-labels", "CIFAR-10 40"): 39026,
    ("few-labels", "CIFAR-10 250"): 61832,
    ("few-labels", "CIFAR-10 4000"): 73640,
    ("few-labels", "CIFAR-100 200"): 8863,
    ("few-labels", "CIFAR-100 400"): 23662,
    ("few-labels", "CIFAR-100 2500"): 47393,
    ("few-labels", "CIFAR-100 10000"): 56869,
    ("state-of-the-art", "epochs"): 969000,
    ("state-of-the-art", "top-1"): 141040,
    ("state-of-the-art", "top-5"): 72030,
}

# SHA-256 of all keys and printed numbers, taken when each had been compared with the page it is printed on.
CHECKED = "17f23b85103fc03853095cf6eea1c0568bc92935ce68123e295a3901637da7f3"

# What the paper says about its own tables: (gain, table, row, baseline row, column).
STATED_GAINS = [
    (("CIFAR-10", f"gain with {n} labels"), "few-labels", "FixMatch (STS)", "FixMatch", f"CIFAR-10 {n}")
    for n in (20, 40, 250, 4000)
] + [
    (("CIFAR-100", f"gain with {n} labels"), "few-labels", "FixMatch (STS)", "FixMatch", f"CIFAR-100 {n}")
    for n in (200, 400, 2500, 10000)
]


def test_every_table_has_as_many_numbers_as_the_paper_prints():
    assert Counter(key[0] for key in PUBLISHED) == COUNTS


def test_the_sum_of_every_column_is_right():
    sums = Counter()
    for (table, _, column), number in PUBLISHED.items():
        if table != "text" and number.value is not None:
            sums[table, column] += round(100 * number.value)
    assert sums == SUMS


def test_no_number_was_changed_since_they_were_checked_against_the_paper():
    listed = "\n".join(" | ".join((*key, number.printed)) for key, number in sorted(PUBLISHED.items()))
    assert hashlib.sha256(listed.encode()).hexdigest() == CHECKED


@pytest.mark.parametrize(("stated", "table", "row", "baseline", "column"), STATED_GAINS)
def test_gains_stated_in_the_text_are_the_differences_of_the_table(stated, table, row, baseline, column):
    difference = published(table, row, column).value - published(table, baseline, column).value
    assert published("text", *stated).value == pytest.approx(difference, abs=1e-9)


def test_numbers_repeated_in_the_text_agree_with_the_tables():
    for method in ("MoCo", "BYOL"):
        for smoothing, table in (("SE", "effect-of-se"), ("TMA", "effect-of-sts"), ("STS", "effect-of-sts")):
            stated = published("text", "effect", f"{method} {smoothing} top-1")
            assert stated.printed == published(table, f"{method} {smoothing}", "top-1").printed
    assert published("granularity", "STS LW", "top-1").value == published("effect-of-sts", "BYOL STS", "top-1").value
    gain = published("effect-of-sts", "BYOL STS", "top-1").value - published("effect-of-sts", "BYOL TMA", "top-1").value
    assert published("text", "abstract", "gain of BYOL on ImageNet, about").value == pytest.approx(gain)


@pytest.mark.parametrize(
    ("table", "row", "column", "value"),
    [
        ("effect-of-sts", "BYOL STS", "top-1", 72.7),
        ("state-of-the-art", "Ours (BYOL + STS) 1000", "top-5", 91.8),
        ("granularity", "STS NW", "time", 1.82),
        ("voc", "Ours", "AP75", 64.4),
        ("few-labels", "FixMatch (STS)", "CIFAR-10 20", 93.31),
        ("text", "ImageNet-C", "mean gain over TMA, about", 1.5),
        ("text", "ImageNet-C", "smallest gain, about", 0.5),
        ("text", "ImageNet-C", "largest gain, about", 5.6),
        ("text", "CIFAR-10", "upper bound with all labels", 97.01),
    ],
)
def test_well_known_cells_are_found(table, row, column, value):
    assert published(table, row, column).value == value


def test_trainings_that_failed_have_no_value():
    assert {key for key, n in PUBLISHED.items() if n.value is None} == {
        ("effect-of-se", f"{method} none", column) for method in ("MoCo", "BYOL") for column in ("top-1", "top-5")
    }


def test_rows_keep_the_order_of_the_paper_and_unknown_cells_get_a_hint():
    assert list(published_rows("voc")) == ["supervised", "SimCLR", "MoCo v2", "SwAV", "SimSiam", "BYOL", "Ours"]
    assert set(TABLES) == set(COUNTS) - {"text"}
    with pytest.raises(ConfigError, match="did you mean voc / Ours / AP75"):
        published("voc", "Ours", "AP57")
    with pytest.raises(ConfigError, match="tables are effect-of-se"):
        published_rows("table 7")
