"""The study `noise`: what it measures is what theory predicts, and its report names both."""

from dataclasses import replace
from pathlib import Path

import pytest

from sts_pipelines.study import noise
from sts_pipelines.study.pages.noise_report import write_noise_report


def short(setting: noise.Setting, steps: int) -> noise.Setting:
    return replace(setting, training=replace(setting.training, steps=steps))


def test_single_weights_scatter_as_predicted_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "POINTS", 4)
    setting = short(noise.settings()["byol"], 24)
    monkeypatch.setattr(noise, "settings", lambda: {"byol": setting})
    noise.conduct_noise(tmp_path)
    written = (tmp_path / "byol.json").read_bytes()
    (point, *_) = [p["teachers"]["sts"] for p in noise.follow(setting)][-1:]
    assert point["neuron"] == pytest.approx(point["predicted"], rel=0.02)
    assert point["tma"] > point["predicted"]
    text = write_noise_report(tmp_path).read_text()
    assert "| BYOL | STS | 0.99 | 0.7 |" in text
    assert "| BYOL | SE | 0 | 0.99 |" in text
    assert (tmp_path / "byol-sts.svg").is_file()
    noise.conduct_noise(tmp_path)  # what is measured is not measured again
    assert (tmp_path / "byol.json").read_bytes() == written
