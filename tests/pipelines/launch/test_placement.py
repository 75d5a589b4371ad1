"""Whether Ray would place a group of workers, on machines that answer late."""

from types import SimpleNamespace

import pytest
import ray.util

from sts_pipelines.launch import placement


class Group:
    """A placement group that Ray places after some waits, or never."""

    def __init__(self, placed_after: int) -> None:
        self.waits, self.placed_after = 0, placed_after

    def wait(self, *, timeout_seconds: float) -> bool:
        self.waits += 1
        return self.waits >= self.placed_after


@pytest.mark.parametrize(
    ("state", "placed_after", "fits"),
    [("SCHEDULING_STARTED", 3, True), ("INFEASIBLE", 99, False), ("NO_RESOURCES", 99, False)],
)
def test_a_group_fits_or_not_by_what_ray_decides_however_long_it_takes(
    state: str, placed_after: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray.util, "placement_group_table", lambda group: {"stats": {"scheduling_state": state}})
    assert placement._is_placed(Group(placed_after)) == fits


def test_a_placement_that_ray_never_decides_is_an_error_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "placement_group_table", lambda group: {"stats": {"scheduling_state": "QUEUED"}})
    group = Group(placed_after=99)
    with pytest.raises(TimeoutError, match="decided nothing in 120 seconds"):
        placement._is_placed(group)
    assert group.waits == 12


def test_a_simulated_cluster_that_a_busy_machine_starts_late_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def init(**options: object) -> SimpleNamespace:
        asked.append(options["address"])
        if len(asked) < 3:
            raise RuntimeError("The current node timed out during startup.")
        return SimpleNamespace()

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray.util, "placement_group", lambda bundles, strategy: Group(placed_after=1))
    assert placement._place({"num_cpus": 1, "num_gpus": 0, "bundles": [{"CPU": 1}]}) == placement._FITS
    assert asked == ["local"] * 3
