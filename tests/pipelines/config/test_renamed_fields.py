"""A renamed field is still read under its former name, from files and flags, and digests do not change."""

from dataclasses import dataclass, field

import pytest

from sts_core.fields import added, formerly, incidental
from sts_pipelines.config.flags import apply_flags, describe_flags
from sts_pipelines.config.plain import digest, outcome_relevant, to_dict
from sts_pipelines.config.reading import from_dict
from sts_pipelines.errors import SchemaError


@dataclass(frozen=True, kw_only=True)
class OldData:
    recipe: str = "byol"
    size: int = 8


@dataclass(frozen=True, kw_only=True)
class OldConfig:
    data: OldData = field(default_factory=OldData)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Data:
    views: str = field(default="byol", metadata=formerly("recipe"))
    """Whose views."""
    size: int = 8
    """In pixels."""
    folder: str = incidental("here")
    """Where they lie."""
    mirrored: bool = added(False)
    """Whether they are mirrored."""


@dataclass(frozen=True, kw_only=True)
class Config:
    images: Data = field(default_factory=Data, metadata=formerly("data"))
    """Images and views."""
    seed: int = 0
    """The key of all draws."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    config: Config = field(default_factory=Config, metadata={"flatten": True})
    """What it holds."""


def test_the_digest_of_a_renamed_field_stays_and_incidental_ones_do_not_count() -> None:
    before = OldConfig(data=OldData(recipe="moco"), seed=3)
    now = Config(images=Data(views="moco", folder="there"), seed=3)
    assert digest(outcome_relevant(now)) == digest(to_dict(before)) == digest(outcome_relevant(Outer(config=now)))
    assert to_dict(now)["images"] == {"views": "moco", "size": 8, "folder": "there", "mirrored": False}
    assert digest(outcome_relevant(now)) != digest(
        outcome_relevant(Config(images=Data(views="moco", mirrored=True), seed=3))
    )


@pytest.mark.parametrize("cls", [Config, Outer])
def test_files_of_earlier_versions_are_read(cls: type) -> None:
    expected = Config(images=Data(views="moco"), seed=3)
    read = from_dict(cls, to_dict(OldConfig(data=OldData(recipe="moco"), seed=3)))
    assert read == (expected if cls is Config else Outer(config=expected))


@pytest.mark.parametrize("cls", [Config, Outer])
@pytest.mark.parametrize("plain", [{"data": {"recipe": "moco"}}, {"images": {"views": "moco"}}, {}])
@pytest.mark.parametrize("flag", ["--data.recipe", "--images.recipe", "--data.views", "--images.views"])
def test_a_flag_by_either_name_overrides_a_file_by_either_name(cls: type, plain: dict, flag: str) -> None:
    changed = apply_flags(cls, plain, [flag, "dino", "--data.size=4"])
    assert changed == {"images": {"views": "dino", "size": "4"}}
    assert from_dict(cls, changed) == from_dict(cls, {"images": {"views": "dino", "size": 4}})


def test_the_last_of_two_flags_for_one_field_counts() -> None:
    flags = ["--images.views=dino", "--data.recipe=moco"]
    assert from_dict(Config, apply_flags(Config, {}, flags)).images.views == "moco"
    assert from_dict(Config, apply_flags(Config, {}, flags[::-1])).images.views == "dino"


def test_both_names_in_one_file_are_refused_and_help_shows_the_present_one() -> None:
    with pytest.raises(SchemaError, match=r"^images\.recipe is the former name of images\.views: give one of the two$"):
        from_dict(Config, {"images": {"recipe": "moco", "views": "byol"}})
    shown = describe_flags(Config, to_dict(Config()))
    assert "--images.views  (byol)" in shown
    assert "recipe" not in shown
