"""Plain configs, flags and YAML: what goes in comes out, and every mistake is named."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sts_core.errors import ConfigError
from sts_core.fields import flattened
from sts_pipelines.config.flags import apply_flags, describe_flags, field_docs
from sts_pipelines.config.pipeline import ComparisonConfig
from sts_pipelines.config.plain import digest, to_dict
from sts_pipelines.config.reading import from_dict
from sts_pipelines.config.sections import paths
from sts_pipelines.config.yaml_text import read_yaml, write_yaml
from sts_pipelines.errors import SchemaError, UsageError


@dataclass(frozen=True, kw_only=True)
class AppleConfig:
    seeds: int = 5
    """How many seeds."""


@dataclass(frozen=True, kw_only=True)
class PearTreeConfig:
    height: float = 2.0
    """Metres."""


@dataclass(frozen=True, kw_only=True)
class SoilConfig:
    ph: float = 7.0
    """Acidity."""
    kind: Literal["sand", "clay"] = "sand"
    """What it is made of."""
    depth: float | None = 1.0
    """How deep it goes."""
    weight: float | None = None
    """How heavy it is, in place of the depth."""
    shares: tuple[float, ...] = ()
    """What else is in it."""
    extras: Mapping[str, float] = field(default_factory=dict)
    """The same by name."""

    def __post_init__(self) -> None:
        if not 0 <= self.ph <= 14:
            raise ConfigError(f"ph must be in [0, 14], got {self.ph}: measure again", fields=("ph",))
        if self.depth is not None and self.depth < 0:
            raise ConfigError(f"depth must be positive, got {self.depth}: measure again", fields=("depth",))
        if (self.depth is None) == (self.weight is None):
            raise ConfigError("exactly one of depth and weight must be given", fields=("depth", "weight"))
        if sum(self.shares) + sum(self.extras.values()) > 1:
            raise ConfigError("what else is in it must be at most 1 together", fields=("shares", "extras"))


@dataclass(frozen=True, kw_only=True)
class CareConfig:
    water: bool = False
    """Whether to water."""
    days: tuple[int, ...] = (1, 2)
    """When."""
    limit: int | None = None
    """How often at most."""
    rows: tuple[tuple[float, float], ...] = ()
    """Where they begin and end."""
    soil: SoilConfig = field(default_factory=SoilConfig)
    """Where it stands."""


@dataclass(frozen=True, kw_only=True)
class GardenConfig:
    name: str
    """What it is called."""
    plant: AppleConfig | PearTreeConfig
    """What grows."""
    care: CareConfig = field(default_factory=CareConfig, metadata={"flatten": True})
    """How it is kept."""
    beds: Mapping[str, SoilConfig] = field(default_factory=dict)
    """More soil."""


GARDEN = GardenConfig(
    name="mine", plant=PearTreeConfig(height=3.5), care=CareConfig(days=(3,), limit=4), beds={"a": SoilConfig(ph=5.0)}
)


def read(**changes: object) -> GardenConfig:
    return from_dict(GardenConfig, to_dict(GARDEN) | changes)


def problems_of(**changes: object) -> tuple[str, ...]:
    with pytest.raises(SchemaError) as caught:
        read(**changes)
    return caught.value.problems


def test_a_config_survives_the_way_to_plain_and_yaml_and_back() -> None:
    assert from_dict(GardenConfig, to_dict(GARDEN)) == GARDEN
    assert from_dict(GardenConfig, read_yaml(write_yaml(to_dict(GARDEN)))) == GARDEN


def test_flattened_fields_stand_beside_their_parents_and_unions_say_their_kind() -> None:
    plain = to_dict(GARDEN)
    assert plain["water"] is False
    assert "care" not in plain
    assert plain["plant"] == {"kind": "peartree", "height": 3.5}


def test_all_problems_are_found_at_once() -> None:
    problems = problems_of(water="yes", days=[1, "x"], soil={"ph": 99}, limit=1.5)
    assert len(problems) == 4
    assert any("water must be true or false" in problem for problem in problems)
    assert any("days[1] must be a whole number" in problem for problem in problems)
    assert any("soil: ph must be in [0, 14]" in problem for problem in problems)
    assert any("limit must be a whole number" in problem for problem in problems)


@pytest.mark.parametrize(
    ("soil", "named"),
    [
        ({"ph": 99, "depth": -1}, ["ph must be in", "depth must be positive"]),
        ({"ph": 99, "kind": "sandy"}, ["kind must be one of", "ph must be in"]),
        ({"ph": 99, "depth": 1, "weight": 1}, ["ph must be in", "exactly one of"]),
        ({"ph": 99, "shares": [0.5, "x"]}, ["shares[1] must be a number", "ph must be in"]),
        ({"extras": {"ash": "x"}, "shares": [2.0]}, ["extras.ash must be a number"]),
        # What could follow from a wrong value alone is not held against the others.
        ({"depth": None, "weight": "heavy"}, ["weight must be a number"]),
        ({"ph": 99, "depth": None, "weight": "heavy"}, ["weight must be a number", "ph must be in"]),
    ],
)
def test_all_wrong_values_of_a_section_are_named(soil: dict[str, object], named: list[str]) -> None:
    problems = problems_of(soil=soil)
    assert len(problems) == len(named)
    assert all(text in problem for text, problem in zip(named, problems, strict=True))


def test_an_error_of_several_problems_is_one_line() -> None:
    error = SchemaError(["a is wrong", "b is wrong"])
    assert str(error) == "2 problems: a is wrong; b is wrong"


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"wter": True}, "did you mean water?"),
        ({"ph": 3}, "did you mean soil.ph?"),
        ({"soil": {"phh": 3}}, "did you mean soil.ph?"),
        ({"soil": {"kind": "sandy"}}, "did you mean sand?"),
        ({"plant": {"kind": "plum"}}, "one of apple, peartree"),
        ({"zzzz": 1}, "known here: beds, days"),
    ],
)
def test_an_unknown_name_gets_the_nearest_known_one(changes: dict[str, object], hint: str) -> None:
    assert hint in problems_of(**changes)[0]


def test_a_missing_value_is_named() -> None:
    with pytest.raises(SchemaError, match="name is missing"):
        from_dict(GardenConfig, {"plant": {"kind": "apple"}})


def test_whole_numbers_are_read_as_numbers_but_true_is_not_one() -> None:
    assert read(soil={"ph": 6}).care.soil.ph == 6.0
    assert "must be a number" in problems_of(soil={"ph": True})[0]
    assert "must be a whole number" in problems_of(limit=True)[0]


def test_flags_override_every_kind_of_field() -> None:
    tokens = ["--soil.ph", "6.5", "--plant.height=1e1", "--water", "--days", "4,5", "--limit", "none", "--beds.b.ph=-0"]
    garden = from_dict(GardenConfig, apply_flags(GardenConfig, to_dict(GARDEN), tokens))
    assert garden.care == CareConfig(water=True, days=(4, 5), limit=None, soil=SoilConfig(ph=6.5))
    assert garden.plant == PearTreeConfig(height=10.0)
    assert garden.beds == {"a": SoilConfig(ph=5.0), "b": SoilConfig(ph=0.0)}


def test_lists_of_lists_and_empty_ones_are_written_as_yaml() -> None:
    garden = from_dict(
        GardenConfig, apply_flags(GardenConfig, to_dict(GARDEN), ["--rows", "[[1,2.5],[.5,1e1]]", "--days=[]"])
    )
    assert garden.care.rows == ((1.0, 2.5), (0.5, 10.0))
    assert garden.care.days == ()
    assert from_dict(GardenConfig, apply_flags(GardenConfig, to_dict(GARDEN), ["--rows", ""])).care.rows == ()


@pytest.mark.parametrize("text", ["0.9,0.5", "0.9:0.5", "[[0.9, 0.5]"])
def test_a_list_of_lists_that_is_written_otherwise_is_told_how(text: str) -> None:
    with pytest.raises(SchemaError, match=r"rows must be a list, got .*: write \[\[a, b\], \[c, d\]\]"):
        from_dict(GardenConfig, apply_flags(GardenConfig, to_dict(GARDEN), ["--rows", text]))


def test_a_new_teacher_beside_others_takes_their_buffers_and_no_other_section_does() -> None:
    plain = {"name": "x", "smoothing": {"buffers": "copy"}, "variants": {"tma": {"momentum": 0.9, "buffers": "keep"}}}
    changed = apply_flags(ComparisonConfig, plain, ["--variants.mine.momentum", ".5", "--data.root", "here"])
    assert changed["variants"]["mine"] == {"buffers": "keep", "momentum": ".5"}
    assert changed["data"] == {"root": "here"}


def test_flags_leave_the_original_alone_and_take_dashes() -> None:
    plain = to_dict(GARDEN)
    apply_flags(GardenConfig, plain, ["--soil.p-h", "1"])
    assert plain == to_dict(GARDEN)


def test_a_flag_without_its_value_and_a_value_without_its_flag_are_refused() -> None:
    with pytest.raises(SchemaError, match="--limit needs a value"):
        from_dict(GardenConfig, apply_flags(GardenConfig, to_dict(GARDEN), ["--limit"]))
    with pytest.raises(UsageError, match="put its flag before the value"):
        apply_flags(GardenConfig, {}, ["7"])


def test_every_flag_is_described_by_the_line_under_its_field() -> None:
    text = describe_flags(GardenConfig, to_dict(GARDEN))
    assert "--soil.ph  (7.0)\n    Acidity." in text
    assert "--plant.height  (3.5)\n    Metres." in text
    assert "seeds" not in text
    assert field_docs(GardenConfig)["water"] == "Whether to water."


def test_paths_and_leaves_name_everything_that_can_be_set() -> None:
    plain = to_dict(GARDEN)
    assert set(paths(GardenConfig, plain)) == {
        "name", "plant.height", "water", "days", "limit", "rows",
        "soil.ph", "soil.kind", "soil.depth", "soil.weight", "soil.shares", "soil.extras", "beds",
    }  # fmt: skip
    assert flattened(plain)["beds.a.ph"] == 5.0


def test_a_digest_sees_values_and_not_their_order_nor_what_is_ignored() -> None:
    plain = to_dict(GARDEN)
    shuffled = dict(reversed(list(plain.items())))
    assert digest(plain) == digest(shuffled)
    assert digest(plain) != digest(plain | {"water": True})
    assert digest(plain, ignore=["water"]) == digest(plain | {"water": True}, ignore=["water"])


@pytest.mark.slow
@example(number=1.0, text="a\x85b\u2028c\u2029", truth=True, maybe=None)
@given(st.floats(allow_nan=False), st.text(), st.booleans(), st.one_of(st.none(), st.integers()))
def test_any_value_survives_yaml(number: float, text: str, truth: bool, maybe: int | None) -> None:
    plain = {"number": number, "text": text, "truth": truth, "maybe": maybe, "nested": {"list": [number, text]}}
    assert read_yaml(write_yaml(plain)) == plain


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a: 1e-4", 1e-4), ("a: 5E3", 5e3), ("a: on", "on"), ("a: no", "no"), ("a: 1.", 1.0), ("a: true", True),
     ("a: 2024-01-01", "2024-01-01"), ("a: 12", 12), ("a: .inf", float("inf")),
     ("a: 1:30", "1:30"), ("a: 1_0", "1_0"), ("a: 010", "010"), ("a: -3", -3), ("a: 0", 0), ("a: 1:30.5", "1:30.5")],
)  # fmt: skip
def test_yaml_is_read_without_surprises(text: str, expected: object) -> None:
    value = read_yaml(text)["a"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system [ls]",
        "a: &x [1]\nb: *x",
        "a: 1\na: 2",
        "- 1",
        "a: [",
        "a: {b: 1, b: 2}",
        "kind: [a]",
    ],
)
def test_dangerous_or_broken_yaml_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_yaml(text, source="mine.yaml")
    assert "mine.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
