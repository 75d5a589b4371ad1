"""What users import from sts_eval."""

from types import ModuleType

import sts_eval


def test_all_is_every_public_name_of_the_package_in_order() -> None:
    names = [name for name, value in vars(sts_eval).items() if name[0] != "_" and not isinstance(value, ModuleType)]
    assert sorted([*names, "charts"]) == sorted(sts_eval.__all__)
    assert len(set(sts_eval.__all__)) == len(sts_eval.__all__)
    assert all(getattr(sts_eval, name).__module__.startswith("sts_") for name in names if not name.isupper())
