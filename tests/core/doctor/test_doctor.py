"""What the doctor says of checkpoints in other people's layouts, sound and ill."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sts_core import Smoother, make_teacher, spatial_temporal_smoothing, temporal_moving_average
from sts_core.doctor import examine
from sts_core.errors import CheckpointError
from tests import processes


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))


def trained(steps: int, *, momentum: float = 0.9) -> tuple[nn.Module, nn.Module]:
    """A student that moved on a straight line, and its average."""
    student = network()
    teacher = make_teacher(student)
    smoother = Smoother(student=student, teacher=teacher, config=temporal_moving_average(momentum), seed=0)
    for _ in range(steps):
        student(torch.randn(8, 6, generator=torch.Generator().manual_seed(1)))
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.01)
        smoother.update()
    return student, teacher


def layouts(student: Any, teacher: Any) -> dict[str, Any]:
    """The same two networks as DINO, timm, Lightning (ours and its own), MoCo, ema-pytorch, plain loops save them."""
    s, t = student.state_dict(), teacher.state_dict()

    def below(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
        return {prefix + name: value for name, value in state.items()}

    return {
        "dino": {"student": s, "teacher": t, "epoch": 3},
        "timm": {"state_dict": s, "state_dict_ema": t, "epoch": 3},
        "lightning-average": {"state_dict": t, "current_model_state": s, "global_step": 3},
        "lightning-callback": {"state_dict": s, "teachers": {"teacher": t}, "global_step": 3},
        "moco": {"state_dict": below("module.encoder_q.", s) | below("module.encoder_k.", t)},
        "averaged-model": {
            "model": s,
            "ema": {"module." + n: v for n, v in t.items()} | {"n_averaged": torch.tensor(3)},
        },
        "ema-pytorch": {
            "ema": {"online_model." + n: v for n, v in s.items()} | {"ema_model." + n: v for n, v in t.items()}
        },
        "ema-pytorch-alone": {
            "model": s,
            "ema": {"step": torch.tensor(3)} | {"ema_model." + n: v for n, v in t.items()},
        },
        "part": {"state_dict": {"net.body." + n: v for n, v in s.items()}, "teachers": {"teacher": t}},
        "wrapped": {"model": {"module._orig_mod." + n: v for n, v in s.items()}, "model_ema": t},
        "plain": below("student.", s) | below("teacher.", t),
    }


@pytest.mark.parametrize("layout", list(layouts(network(), network())))
def test_a_sound_average_is_found_in_every_layout(layout: str, tmp_path: Path) -> None:
    torch.save(layouts(*trained(3))[layout], tmp_path / "it.pt")
    findings = examine(tmp_path / "it.pt")
    assert [finding.text for finding in findings if finding.wrong] == []
    assert any("% of the weights' norm away" in finding.text for finding in findings)
    assert any("2 batch norm statistics, which have moved" in finding.text for finding in findings)


def test_folders_of_sts_and_of_transformers_are_opened_with_their_steps(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    for steps in (5, 25):
        student, teacher = trained(steps)
        ours = tmp_path / f"step-{steps}"
        ours.mkdir()
        both = {"student." + n: v for n, v in student.state_dict().items()}
        both |= {"teacher." + n: v for n, v in teacher.state_dict().items()}
        torch.save({"meta": {"step": steps}, "method": both, "optimizer": {"state": {}}}, ours / "state.pt")
        theirs = tmp_path / f"checkpoint-{steps}"
        theirs.mkdir()
        safetensors.save_file(student.state_dict(), theirs / "model.safetensors")
        safetensors.save_file(teacher.state_dict(), theirs / "teacher.safetensors")
        diffusion = tmp_path / "diffusers" / f"checkpoint-{steps}"
        for name, network in {"unet": student, "unet_ema": teacher}.items():
            (diffusion / name).mkdir(parents=True)
            safetensors.save_file(network.state_dict(), diffusion / name / "diffusion_pytorch_model.safetensors")
        bank = tmp_path / "bank" / f"checkpoint-{steps}"
        bank.mkdir(parents=True)
        parts = list(student.state_dict().items())
        for number, part in enumerate((parts[:3], parts[3:]), start=1):
            safetensors.save_file(dict(part), bank / f"model-{number:05}-of-00002.safetensors")
        torch.save({"teachers": {"tma": teacher.state_dict()}, "step": steps}, bank / "bank.pt")
    for name in ("step", "checkpoint", "diffusers/checkpoint", "bank/checkpoint"):
        findings = examine(tmp_path / f"{name}-5", tmp_path / f"{name}-25")
        assert not [finding.text for finding in findings if finding.wrong]
        assert "over 20 steps like a moving average with m = 0.9 " in findings[-1].text


def only_wrong(path: Path, *later: Path) -> str:
    (wrong,) = [finding.text for finding in examine(path, *later) if finding.wrong]
    return wrong


def test_an_average_that_is_the_raw_weights(tmp_path: Path) -> None:
    student, _ = trained(3)
    torch.save({"state_dict": student.state_dict(), "state_dict_ema": student.state_dict()}, tmp_path / "it.pt")
    assert "state_dict_ema, the average of state_dict, equals it to the bit" in only_wrong(tmp_path / "it.pt")


def test_an_average_with_the_statistics_of_a_new_network(tmp_path: Path) -> None:
    student, teacher = trained(3)
    teacher[1].reset_running_stats()  # type: ignore[index]
    torch.save({"student": student.state_dict(), "teacher": teacher.state_dict()}, tmp_path / "it.pt")
    wrong = only_wrong(tmp_path / "it.pt")
    assert "batch norm statistics of a new network (2 of 2, 1.running_mean for one)" in wrong


def test_an_average_in_sixteen_bits(tmp_path: Path) -> None:
    student, teacher = trained(3)
    teacher[0].bfloat16()  # type: ignore[index]
    torch.save({"student": student.state_dict(), "teacher": teacher.state_dict()}, tmp_path / "it.pt")
    assert "is kept in bfloat16: at m above about 0.9961 it hardly moves" in only_wrong(tmp_path / "it.pt")


def test_an_average_that_never_moves(tmp_path: Path) -> None:
    (student, teacher), (later, _) = trained(3), trained(7)
    torch.save({"student": student.state_dict(), "teacher": teacher.state_dict()}, tmp_path / "a.pt")
    torch.save({"student": later.state_dict(), "teacher": teacher.state_dict()}, tmp_path / "b.pt")
    assert "did not move between the two checkpoints, though student did" in only_wrong(
        tmp_path / "a.pt", tmp_path / "b.pt"
    )


@pytest.mark.parametrize(
    ("average", "sentence"),
    [
        ({"0.weight": torch.full((16, 6), torch.nan)}, "holds NaN or infinities"),
        ({"0.weight": torch.ones(16, 6), "0.bias": torch.ones(3)}, r"another shape \(1 of 2, 0.bias for one\)"),
    ],
)
def test_an_average_that_is_broken_or_of_another_network(
    average: dict[str, torch.Tensor], sentence: str, tmp_path: Path
) -> None:
    torch.save({"model": network().state_dict(), "ema": average}, tmp_path / "it.pt")
    assert re.search(sentence, only_wrong(tmp_path / "it.pt"))


@pytest.mark.parametrize(
    ("checkpoint", "sentence"),
    [
        ({}, "whose entries are none"),
        ({name: {"w": torch.ones(3, device="meta")} for name in ("model", "ema")}, "whose entries are model, ema"),
        (None, "does not exist"),
    ],
)
def test_a_checkpoint_without_an_average(checkpoint: dict[str, Any] | None, sentence: str, tmp_path: Path) -> None:
    if checkpoint is not None:
        torch.save(checkpoint, tmp_path / "it.pt")
    with pytest.raises(CheckpointError, match=sentence):
        examine(tmp_path / "it.pt")


def test_two_checkpoints_of_different_networks(tmp_path: Path) -> None:
    for name, width in {"a.pt": 3, "b.pt": 4}.items():
        torch.save({"model": {"w": torch.ones(width)}, "ema": {"w": torch.zeros(width)}}, tmp_path / name)
    with pytest.raises(CheckpointError, match="both checkpoints must be of one network, but w is missing"):
        examine(tmp_path / "a.pt", tmp_path / "b.pt")


@pytest.mark.parametrize("momentum", [0.5, 0.9, 0.99])
def test_the_decay_of_a_moving_average_is_recovered(momentum: float, tmp_path: Path) -> None:
    for name, steps in (("a", 5), ("b", 25)):
        student, teacher = trained(steps, momentum=momentum)
        content = {"state_dict": student.state_dict(), "teachers": {"ema": teacher.state_dict()}, "global_step": steps}
        torch.save(content, tmp_path / f"{name}.pt")
    (told,) = [f.text for f in examine(tmp_path / "a.pt", tmp_path / "b.pt") if "like a moving average" in f.text]
    assert f"over 20 steps like a moving average with m = {momentum:g} (0.0% unexplained)" in told


def test_the_decay_of_an_sts_teacher_is_its_effective_one(tmp_path: Path) -> None:
    config = spatial_temporal_smoothing(0.9, 0.5, granularity="neuron")
    student = nn.Linear(300, 300)
    teacher = make_teacher(student)
    smoother = Smoother(student=student, teacher=teacher, config=config, seed=0)
    for step in range(1, 61):
        with torch.no_grad():
            student.weight.add_(0.01)
        smoother.update()
        if step in (20, 60):
            state = {"student": student.state_dict(), "teacher": teacher.state_dict(), "step": step}
            torch.save(state, tmp_path / f"{step}.pt")
    (told,) = [f.text for f in examine(tmp_path / "20.pt", tmp_path / "60.pt") if "like a moving average" in f.text]
    fitted = float(told.split("m = ")[1].split(" ")[0])
    assert abs(fitted - config.effective_momentum) < 0.002


class Malice:
    def __reduce__(self) -> Any:
        return os.system, ("touch it-ran",)


def test_a_file_with_code_in_it_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"student": Malice()}, tmp_path / "it.pt")
    with pytest.raises(CheckpointError, match="holds more than tensors and plain values, and was not opened"):
        examine(tmp_path / "it.pt")
    assert not (tmp_path / "it-ran").exists()


@pytest.mark.slow
def test_the_command_prints_findings_and_says_by_its_exit_code_what_they_are(tmp_path: Path) -> None:
    torch.save(layouts(*trained(3))["timm"], tmp_path / "sound.pt")
    student, _ = trained(3)
    torch.save({"student": student.state_dict(), "teacher": student.state_dict()}, tmp_path / "ill.pt")
    (tmp_path / "torn.pt").write_bytes(b"PK not a checkpoint")
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    told = {}
    for name in ("sound", "ill", "torn", "other", "missing"):
        done = processes.run([sys.executable, "-m", "sts_core.doctor", tmp_path / f"{name}.pt"])
        told[name] = (done.returncode, done.stdout, done.stderr)
    assert [code for code, *_ in told.values()] == [0, 1, 2, 2, 2]
    assert told["sound"][1].startswith("ok     state_dict_ema, the average of state_dict, has 9 tensors in common")
    assert "WRONG  " in told["ill"][1]
    assert "cannot be read as a checkpoint" in told["torn"][2]
    assert "no student with an average of it was found" in told["other"][2]
    assert all(err.count("\n") == 1 for code, _, err in told.values() if code == 2)
