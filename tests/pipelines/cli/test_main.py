"""The command line: quick where it must be, one line and exit code 2 for every mistake."""

import json
import os
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from sts_pipelines.cli.main import build_parser, main
from sts_pipelines.cli.verbs import VERBS
from tests import processes


def run_isolated(*arguments: str) -> processes.Finished:
    """Run sts in a process of its own and report which heavy modules it imported."""
    code = (
        "import sys; from sts_pipelines.cli.main import main; code = main(sys.argv[1:]);"
        "heavy = {m.split('.')[0] for m in sys.modules} & {'torch', 'ray', 'numpy', 'timm'};"
        "print('HEAVY', sorted(heavy)); sys.exit(code)"
    )
    return processes.run([sys.executable, "-c", code, *arguments])


@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["run", "--help"], ["list", "byol-*", "--json"]])
def test_listing_and_help_import_neither_torch_nor_ray(arguments: list[str]) -> None:
    finished = run_isolated(*arguments)
    assert finished.returncode == 0
    assert "HEAVY []" in finished.stdout


def test_what_ray_imports_of_us_in_driver_and_controller_loads_neither_timm_nor_torchvision() -> None:
    code = "import sys, sts_pipelines.launch.worker; sys.exit(any(m in sys.modules for m in ('timm', 'torchvision')))"
    assert processes.run([sys.executable, "-c", code]).returncode == 0


def test_the_list_shows_name_paper_hardware_and_hours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "PAPER", "HARDWARE", "HOURS", "BFLOAT16"]
    row = next(line for line in lines if line.startswith("moco-imagenet-200ep-sts"))
    assert "effect of STS" in row
    assert "8 GPUs" in row
    assert row.endswith("~16 / ~50 h est.            ~8 / ~35 h est.")


def test_the_list_can_be_filtered_and_read_by_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "fixmatch-cifar10-40-*", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)]
    assert names == ["fixmatch-cifar10-40-tma", "fixmatch-cifar10-40-sts", "fixmatch-cifar10-40-p-by-m"]


def test_the_list_takes_a_part_of_a_name_and_the_hardware(capsys: pytest.CaptureFixture[str]) -> None:
    listed: dict[str, list[dict[str, str]]] = {}
    for flag in ("--gpu", "--cpu"):
        assert main(["list", "byol", flag, "--json"]) == 0
        listed[flag] = json.loads(capsys.readouterr().out)
    assert all("byol" in entry["name"] for entries in listed.values() for entry in entries)
    assert {entry["hardware"] for entry in listed["--cpu"]} == {"2 CPU cores"}
    assert all("GPU" in entry["hardware"] for entry in listed["--gpu"])


def test_the_list_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 80
    assert "~28 / ~88 h est." in lines[1]
    assert "BFLOAT16" not in lines[0]
    assert any(".." in line for line in lines)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sts {version('sts-pipelines')}\n"


def test_show_prints_a_config_that_show_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "byol-digits-sts", "--smoothing.momentum", "0.5", "--name=mine"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "mine.yaml").write_text(first)
    assert main(["show", str(tmp_path / "mine.yaml")]) == 0
    assert capsys.readouterr().out == "".join(line for line in first.splitlines(True) if not line.startswith("#"))
    assert "momentum: 0.5" in first


def test_show_lists_every_flag_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "moco-digits-sts", "--flags"]) == 0
    text = capsys.readouterr().out
    assert "--method.queue-size  (512)\n    Number of keys kept as negatives." in text
    assert "--cluster.num-workers" in text
    assert "--evaluation.linear.epochs" in text


MISTAKES = [
    (["run", "quickstar"], "did you mean quickstart?"),
    (["run", "nothing-like-it.yaml"], "cannot be read"),
    (["run", "byol-digits-sts", "--smoothing.momentm", "0.9"], "did you mean smoothing.momentum?"),
    (["run", "byol-digits-sts", "--smoothing.momentum", "1.5"], "must be in [0, 1]"),
    (["run", "byol-digits-sts", "--seed", "x", "--steps", "y"], "2 problems"),
    (["run", "byol-digits-sts", "--momentum", "0.9"], "did you mean smoothing.momentum or optimizer.momentum"),
    (["run", "quickstart", "--global-batch-size", "127", "--accumulation", "2"], "divisible by accumulation = 2"),
    (["run", "moco-digits-sts", "--cluster.num-workers", "4", "--cluster.min-workers", "2"], "accumulation = 3"),
    (["run", "byol-digits-sts", "--cluster.cpus-per-worker", "1e9"], "at most 1,024, got 1e+09"),
    (
        ["show", "byol-digits-sts", "--evaluation.voc.rpn-test-post-nms", "9" * 400],
        "must be a number of usual size",
    ),
    (["run", "byol-digits-p-by-m"], "sts sweep byol-digits-p-by-m"),
    (["sweep", "byol-digits-sts"], "sts run byol-digits-sts"),
    (["run", "quickstart", "--smoothing.momentum", "0.9"], "variants.NAME.momentum"),
    (["run", "quickstart", "--smoothing.buffers=copy"], "variants.NAME.buffers"),
    (["run", "quickstart", "--smoothing.preserve_probability", "0.5"], "variants.NAME.preserve_probability"),
    (["run", "byol-digits-sts", "--sweep.momenta", "0.9"], "use sts sweep byol-digits-sts"),
    (["sweep", "quickstart", "--sweep.momenta=0.9"], "sweep one of its pipelines"),
    (["sweep", "byol-digits-p-by-m", "--smoothing.preserve_probability", "0.5"], "sweep.momenta"),
    (
        ["run", "byol-digits-sts", "--data.dataset", "images", "--data.root", "/"],
        "linear, knn need labelled images",
    ),
    (["sweep", "byol-digits-p-by-m", "--sweep.one-student", "true"], "pseudo_labels: student"),
    (["run", "byol-digits-sts", "--evaluation.after-training", "knn,few-labels"], "byol trains none"),
    (["run", "byol-imagenet-200ep-sts", "--data.root", "/nowhere"], "the folder /nowhere/train, which does not"),
    (["sweep", "byol-imagenet-p-by-m", "--data.root", "/nowhere"], "the folder /nowhere/train, which does not"),
    (["check", "byol-digits-sts", "--seed", "9" * 23], "seed must be an integer in [0, 2**64)"),
    (["evaluate", "/nowhere"], "not a run folder"),
    (["evaluate", "file:///nowhere/x"], "but nothing is there"),
    (["report", "file:///nowhere/x"], "but nothing is there"),
    (["doctor", "file:///nowhere/x"], "but nothing is there"),
    (
        ["export", "file:///nowhere/x", "--to", "timm", "--output", "x.safetensors"],
        "but nothing is there",
    ),
    (["report", "/nowhere"], "/nowhere"),
    (["doctor", "/nowhere"], "does not exist"),
    (["doctor", __file__], "test_main.py cannot be read as a checkpoint"),
    (["export", "/nowhere", "--to", "timm", "--output", "x.safetensors"], "has no teacher.safetensors"),
    (["list", "zzz*"], "no pipeline matches"),
    (["lst"], "invalid choice: 'lst'"),
    (["run"], "required: pipeline"),
    ([], "required: VERB"),
    (["doctor", "--deep", "x"], "unrecognized arguments: --deep"),
    (["show", "byol-digits-sts", "--evaluation.voc.iterations", "200"], "got (18000, 22000): move them, too"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not re.search(r"\w=['\"]|\w\(\.\.\.\)", captured.err)  # as Python writes arguments and calls
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_all_problems_of_one_section_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--cluster.num-workers", "-1", "--cluster.cpus-per-worker", "0", "--cluster.max-failures=-5", "--sed", "1"]
    assert main(["show", "byol-digits-sts", *flags, "--seed", "3"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("sts: 4 problems: ")
    for part in ("sed is unknown", "num_workers must not be", "cpus_per_worker must be", "max_failures must be"):
        assert error.count(part) == 1, part


def test_flags_that_are_right_together_only_are_no_problem_beside_a_wrong_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--cluster.num-workers", "3", "--global-batch-size", "96", "--cluster.max-failures", "-5"]
    assert main(["show", "byol-digits-sts", *flags]) == 2
    assert capsys.readouterr().err == "sts: cluster: max_failures must be -1 or more, got -5: -1 never gives up\n"


def test_a_broken_yaml_file_is_named_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("kind: pipeline\nname: [")
    assert main(["run", str(tmp_path / "mine.yaml")]) == 2
    error = capsys.readouterr().err
    assert "mine.yaml is not valid YAML" in error
    assert error.count("\n") == 1


def test_a_wrong_value_of_a_file_is_told_with_the_file_and_one_of_a_flag_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nseed: 1:30\nmethod: {kind: byol}\n")
    assert main(["show", str(tmp_path / "mine.yaml"), "--steps", "1_0"]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'mine.yaml'}: seed must be a whole number, got '1:30'" in error
    assert "problems: steps must be a whole number, got '1_0'" in error


@pytest.mark.parametrize(("name", "kind"), [("byol-digits-p-by-m", "sweep"), ("quickstart", "comparison")])
def test_a_file_is_of_the_kind_that_its_sections_tell(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", name]) == 0
    text = capsys.readouterr().out
    assert f"kind: {kind}\n" in text
    (tmp_path / "mine.yaml").write_text(text.replace(f"kind: {kind}\n", ""))
    assert main(["show", str(tmp_path / "mine.yaml")]) == 0
    assert f"kind: {kind}\n" in capsys.readouterr().out


def test_a_file_that_contradicts_itself_about_its_kind_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("kind: pipeline\nname: x\nsweep:\n  momenta: [0.9]\n")
    assert main(["show", str(tmp_path / "mine.yaml")]) == 2
    expected = "mine.yaml says kind: pipeline, but has a section of a sweep: write kind: sweep, or remove either\n"
    assert capsys.readouterr().err.endswith(expected)


def test_an_export_says_what_it_wrote_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sts_methods import ExportReport

    (tmp_path / "teacher.safetensors").touch()
    report = ExportReport(path=tmp_path / "x.pth", to="torchvision", num_tensors=318, max_difference=2e-7)
    monkeypatch.setattr("sts_methods.export", lambda *arguments, **options: report)
    assert main(["export", str(tmp_path), "--to", "torchvision", "--output", str(report.path)]) == 0
    expected = f"{report.path}: 318 tensors for torchvision; features differ from ours by at most 2e-07\n"
    assert capsys.readouterr().out == expected


def test_a_place_that_cannot_be_written_to_is_named_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "nowhere" / "file"
    monkeypatch.setattr("sts_pipelines.cli.verbs.list_.run", lambda arguments, overrides: place.write_text(""))
    assert main(["list"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sts: {place} cannot be used (No such file or directory)\n")
    assert error.count("\n") == 1


def test_an_export_to_a_place_that_cannot_be_written_to_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "teacher.safetensors").touch()
    output = str(tmp_path / "teacher.safetensors" / "x.safetensors")
    assert main(["export", str(tmp_path), "--to", "timm", "--output", output]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sts: {tmp_path / 'teacher.safetensors'} cannot be used")
    assert error.count("\n") == 1


def test_a_warning_is_its_words_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import warnings\nwarnings.warn('mind the gap')\n")
    code = "from sts_pipelines.cli.main import main; main()"
    done = processes.run([sys.executable, "-c", code, "--import", "mine", "list"], cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "mind the gap\n")


@pytest.mark.parametrize("mistake", [ZeroDivisionError(), OSError("a socket"), OSError(22, "no file either")])
def test_an_internal_mistake_keeps_its_traceback(mistake: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object, overrides: object) -> int:
        raise mistake

    monkeypatch.setattr("sts_pipelines.cli.verbs.list_.run", fail)
    with pytest.raises(type(mistake)):
        main(["list"])


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(arguments: object, overrides: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("sts_pipelines.cli.verbs.list_.run", interrupt)
    assert main(["list"]) == 130
    assert "the same command continues" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_example_of_a_verb_is_understood(verb: str) -> None:
    from sts_pipelines.cli.main import split_overrides
    from sts_pipelines.cli.resolve import resolve

    _, parsers = build_parser()
    lines = [line for line in VERBS[verb].EXAMPLES.splitlines() if f"sts {verb}" in line]
    assert lines
    for line in lines:
        words = re.split("[>#]", line)[0].replace("'", "").split()
        if words[1] != verb:  # what follows, such as running what was begun
            continue
        own, overrides = split_overrides(words[2:], parsers[words[1]])
        arguments = parsers[words[1]].parse_args(own)
        if words[1] in ("run", "show", "check", "sweep") and not (arguments.pipeline or ".yaml").endswith(".yaml"):
            assert resolve(arguments.pipeline, overrides, to_sweep=verb == "sweep") is not None


def test_every_name_in_the_readme_is_in_the_catalog() -> None:
    import itertools

    from sts_pipelines.catalog import CATALOG

    readme = (Path(__file__).parents[3] / "pipelines" / "README.md").read_text()
    section = readme.partition("## Names")[2].partition("##")[0]
    found = 0
    for name in re.findall(r"`([a-z0-9{},.-]+)`", section):
        parts = [
            part.strip("{}").split(",") if part.startswith("{") else [part] for part in re.split(r"(\{.*?\})", name)
        ]
        for expanded in map("".join, itertools.product(*parts)):
            assert expanded in CATALOG, expanded
            found += 1
    assert found > 60


def test_threads_of_the_command_do_not_spin_while_they_wait(tmp_path: Path) -> None:
    """Beside other jobs, two threads that spin made training 60 times slower."""
    code = "import os, sys; from sts_pipelines.cli.main import main; main(); print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | given
        finished = processes.run([sys.executable, "-c", code, "--version"], env=environment)
        assert finished.stdout.splitlines()[-1] == expected
