"""Fields say whether an outcome depends on them and what they were called."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from sts_core.fields import (
    added,
    flattened,
    former_names,
    formerly,
    free,
    incidental,
    incidental_names,
    is_free,
    outcome_relevant,
    with_present_names,
)


@dataclass(frozen=True, kw_only=True)
class Oven:
    place: str = incidental()
    degrees: int = field(default=180, metadata=formerly("temperature", "heat"))


@dataclass(frozen=True, kw_only=True)
class Cake:
    oven: Oven
    layers: tuple[int, ...] = (1, 2)
    guests: int = free(4)
    notes: str = incidental("", metadata=formerly("remarks"))
    sides: Mapping[str, Oven] = field(default_factory=dict)
    candles: int | None = added(None)


CAKE = Cake(oven=Oven(place="left"), sides={"cream": Oven(place="right", degrees=0)})


def test_a_digest_is_made_of_what_the_outcome_depends_on_under_the_oldest_names() -> None:
    assert outcome_relevant(CAKE) == {
        "oven": {"temperature": 180},
        "layers": [1, 2],
        "guests": 4,
        "sides": {"cream": {"temperature": 0}},
    }


def test_a_recipe_is_what_is_left_without_the_free_fields_of_all_sections() -> None:
    assert outcome_relevant(CAKE, but_free=True) == {
        name: value for name, value in outcome_relevant(CAKE).items() if name != "guests"
    }


def test_a_field_younger_than_some_runs_is_digested_only_where_it_changes_them() -> None:
    with_candles = replace(CAKE, candles=3)
    assert outcome_relevant(with_candles) == outcome_relevant(CAKE) | {"candles": 3}
    assert "candles" not in outcome_relevant(CAKE)


def test_incidental_fields_are_named_in_all_sections_and_free_ones_are_more() -> None:
    assert set(incidental_names(CAKE)) == {"oven.place", "notes"}
    assert [setting.name for setting in fields(Cake) if is_free(setting)] == ["guests", "notes"]


def test_values_saved_under_former_names_get_the_present_ones() -> None:
    assert former_names(Cake) == {"remarks": "notes"}
    saved = {"oven": {"heat": 200, "place": "left"}, "remarks": "good", "unknown": 1}
    present = {"oven": {"degrees": 200, "place": "left"}, "notes": "good", "unknown": 1, "candles": None}
    assert with_present_names(CAKE, saved) == with_present_names(CAKE, present) == present


def test_nested_values_are_flattened_to_dotted_names_and_empty_sections_stay() -> None:
    assert flattened({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}
