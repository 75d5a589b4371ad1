"""What a run tells: means over steps, lines of JSON, a line on the terminal."""

import io
import os
import termios
from pathlib import Path

import pytest
import torch

from sts_methods.runs.metrics_log import MetricsLog, MetricWindow
from sts_methods.runs.progress_line import ProgressDisplay, painted, progress_line


def test_metrics_are_means_over_the_window() -> None:
    window = MetricWindow()
    for value in (1.0, 2.0, 6.0):
        window.add({"loss": torch.tensor(value)})
    assert window.flush() == {"loss": 3.0}
    assert window.flush() == {}


def test_the_log_drops_what_a_resumed_run_will_log_again_and_survives_a_torn_line(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (1, 2, 3):
        log.append({"step": step, "loss": float("nan") if step == 2 else 0.5})
    with log.path.open("a") as file:
        file.write('{"step": 4, "lo')
    log.truncate(after_step=2)
    assert log.read() == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}]


def test_the_progress_line_says_how_far_how_fast_how_long_and_how_well() -> None:
    metrics = {"step": 120, "images_per_second": 1830.4, "loss": 2.31, "feature_std": 0.0412, "effective_rank": 12.31}
    line = progress_line(metrics, total_steps=500, images_per_step=128)
    assert line == "step 120/500 (24%)  1,830 images/s  0:27 left  loss 2.31  std 0.0412  rank 12.3"


class _Terminal:
    def __init__(self, interactive: bool) -> None:
        self.text, self.interactive = "", interactive

    def fileno(self) -> int:
        raise OSError("no file")

    def isatty(self) -> bool:
        return self.interactive

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_a_terminal_gets_a_bar_and_one_line_and_a_file_gets_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = _Terminal(True), _Terminal(False)
    for stream in (terminal, file):
        display = ProgressDisplay(total_steps=3, images_per_step=1, stream=stream)  # type: ignore[arg-type]
        for step in (1, 2, 3):
            display.show({"step": step, "loss": 1.0})
        display.close()
    *_, last = terminal.text.split("\r")
    assert terminal.text.count("\r") == 3
    assert terminal.text.count("\n") == 1
    assert last == "\x1b[32m############\x1b[0m  step 3/3 (100%)  loss 1\n"
    # The second came too soon after the first to be worth a line.
    assert file.text == "step 1/3 (33%)  loss 1\nstep 3/3 (100%)  loss 1\n"


def test_the_line_and_its_bar_fit_into_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    ours, terminals = os.openpty()
    termios.tcsetwinsize(terminals, (24, 80))
    metrics = {"step": 120, "images_per_second": 1830.4, "loss": 2.31, "feature_std": 0.0412, "effective_rank": 12.31}
    with open(terminals, "w", encoding="utf-8") as stream:
        ProgressDisplay(total_steps=500, images_per_step=128, stream=stream).show(metrics)
        line = os.read(ours, 1000).decode().strip()
    os.close(ours)
    assert line == "━━━─────────  step 120/500 (24%)  1,830 images/s  0:27 left  loss 2.31"
    assert len(line) < 80


@pytest.mark.parametrize(("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(
    variables: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.setenv(name, variables.get(name, ""))
    shown = painted("done", "green", _Terminal(True))  # type: ignore[arg-type]
    assert shown == ("\x1b[32mdone\x1b[0m" if coloured else "done")
    assert painted("done", "green", _Terminal(False)) == "done"  # type: ignore[arg-type]


def test_lines_that_are_no_text_or_no_object_are_left_out_and_counted(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 1})
    with log.path.open("ab") as file:
        file.write(b'\xff\xfe\n[1, 2]\n3\n{"step": 2}\n')
    assert log.read() == [{"step": 1}, {"step": 2}]
    assert log.num_damaged() == 3
    log.truncate(after_step=1)
    assert log.read() == [{"step": 1}]


def test_the_time_left_comes_from_several_windows() -> None:
    stream = io.StringIO()
    display = ProgressDisplay(total_steps=120, images_per_step=10, stream=stream, every_seconds=0.0)
    for step, rate in ((10, 100.0), (20, 100.0), (30, 10.0)):
        display.show({"step": step, "images_per_second": rate})
    assert "10 images/s  0:36 left" in stream.getvalue().splitlines()[-1]  # 90 steps at 25 images/s, not at 10
