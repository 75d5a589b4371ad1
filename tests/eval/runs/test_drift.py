import copy
import itertools
import json

import pytest
import torch
from torch import nn

from sts_core.errors import ConfigError, StateError
from sts_eval import DriftRecord, drift_curve, read_drift, smoothing_effect, teacher_dynamics


def teachers(momentum, epochs=6, steps=30):
    """A student on a random walk with shrinking steps, and the moving averages that follow it."""
    generator = torch.Generator().manual_seed(0)
    student, found = nn.Linear(4, 3), []
    with torch.no_grad():
        student.weight.zero_()
        student.bias.zero_()
        teacher = copy.deepcopy(student)
        found.append(copy.deepcopy(teacher))
        for _ in range(epochs):
            for _ in range(steps):
                for s, t in zip(student.parameters(), teacher.parameters(), strict=True):
                    s.add_(torch.randn(s.shape, generator=generator))
                    t.mul_(momentum).add_(s, alpha=1 - momentum)
            found.append(copy.deepcopy(teacher))
    return found


def test_the_curve_holds_the_mean_squared_differences_of_adjacent_epochs():
    batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    saved = teachers(0.9, epochs=3)
    curve = teacher_dynamics("tma", iter(saved), batch)
    assert [record.epoch for record in curve.records] == [1.0, 2.0, 3.0]
    for record, (before, after) in zip(curve.records, itertools.pairwise(saved), strict=True):
        flat = [torch.cat([p.detach().flatten() for p in net.parameters()]).double() for net in (before, after)]
        assert record.weights == pytest.approx(float((flat[0] - flat[1]).square().mean()))
        moved = (before(batch) - after(batch)).detach()
        assert record.outputs == pytest.approx(float(moved.square().mean()), rel=1e-5)


def test_smoothing_makes_the_teacher_move_less():
    batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    curves = {name: teacher_dynamics(name, teachers(m), batch) for name, m in (("none", 0.0), ("tma", 0.999))}
    effect = smoothing_effect(curves, unsmoothed="none")
    assert set(effect) == {"tma"}
    assert effect["tma"]["weights_ratio"] > 10
    assert effect["tma"]["outputs_ratio"] > 10


def test_the_slope_is_in_decades_per_epoch():
    curve = drift_curve("x", [DriftRecord(e, 10.0 ** (-0.5 * e), 7.0) for e in range(1, 6)])
    assert curve.decades_per_epoch("weights") == pytest.approx(-0.5)
    assert curve.decades_per_epoch("outputs") == pytest.approx(0.0)
    assert curve.mean("weights") == pytest.approx(10**-1.5)


def test_drift_is_read_from_the_metrics_of_a_run_and_a_repeated_epoch_counts_once(tmp_path):
    lines = [
        {"step": 10, "epoch": 0.5, "loss": 1.0},
        {"step": 20, "epoch": 1.0, "parameter_drift": 9.0, "output_drift": 9.0},
        {"step": 20, "epoch": 1.0, "parameter_drift": 0.5, "output_drift": 0.25},
        {"step": 40, "epoch": 2.0, "parameter_drift": 0.4, "output_drift": 0.2},
        {"step": 800, "epoch": 40.0, "parameter_drift": 0.1, "output_drift": 0.1},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    curve = read_drift(tmp_path)
    assert curve.records == (DriftRecord(1.0, 0.5, 0.25), DriftRecord(2.0, 0.4, 0.2))  # the figure ends at epoch 20
    assert len(read_drift(tmp_path, epochs=None).records) == 3
    assert [e["metric"] for e in curve.entries()] == ["weights-mse", "outputs-mse"] * 2


def test_runs_without_drift_are_one_sentence(tmp_path):
    with pytest.raises(StateError, match="does not exist"):
        read_drift(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "epoch": 1.0}\n')
    with pytest.raises(ConfigError, match="track_drift"):
        read_drift(tmp_path)
    for line in ('{"step": 1', "[1]"):
        (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"step": 2}}\n')
        with pytest.raises(StateError, match=r"line 1 of .* is not"):
            read_drift(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "parameter_drift": 1.0, "output_drift": 1.0}\n')
    with pytest.raises(StateError, match="a number for epoch"):
        read_drift(tmp_path)
    net = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="copy it"):
        teacher_dynamics("x", [net, net], torch.zeros(1, 1))
