"""Times of training steps: both implementations obey the rule, and take turns."""

import json

import pytest
import torch

from sts_eval import published_rows
from sts_pipelines.study.pages.tables import timing_table
from sts_pipelines.study.timing import TimedNetwork, plain_update_, ratios, time_network


@pytest.mark.parametrize("granularity", ["layer", "channel", "neuron"])
def test_the_pseudo_code_obeys_the_update_rule(granularity: str) -> None:
    student, start = torch.full((40, 30), 3.0), torch.ones(40, 30)
    teacher = start.clone()
    plain_update_(teacher, student, m=0.5, p=0.0, granularity=granularity)  # type: ignore[arg-type]
    assert torch.equal(teacher, torch.full((40, 30), 2.0))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        moved = start.clone()
        plain_update_(moved, student, m=0.0, p=0.5, granularity=granularity)  # type: ignore[arg-type]
    share = (moved == 3.0).float()
    expected = {"layer": {0.0, 1.0}, "channel": None, "neuron": None}[granularity]
    assert (float(share.mean()) in expected) if expected else 0.2 < float(share.mean()) < 0.8
    if granularity == "channel":
        assert torch.equal(share.amin(1), share.amax(1))


def test_steps_of_both_implementations_are_timed_in_turns() -> None:
    network = TimedNetwork(label="tiny", backbone="test_resnet", batch_size=2, rounds=2, hidden_dim=8)
    times = time_network(network)
    for implementation in ("ours", "pseudo-code"):
        cases = times[implementation]
        assert isinstance(cases, dict)
        assert set(cases) == set(published_rows("granularity"))
        assert all(len(case["step"]) == len(case["update"]) == 2 for case in cases.values())
        assert ratios(cases, "TMA") == (1.0, 1.0, 1.0)
    assert timing_table([json.loads(json.dumps(times))]).count("\n") == len(published_rows("granularity")) + 1
