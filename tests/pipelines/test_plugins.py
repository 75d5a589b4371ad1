"""Packages and modules of other people: what they bring is treated like ours."""

import csv
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import processes
from tests.methods.additions import MODULE

SIMSIAM = Path(__file__).parent / "simsiam"
UV = os.environ.get("UV") or shutil.which("uv")
Sts = Callable[..., processes.Finished]


def command(*search: Path, **variables: str) -> Sts:
    """`sts` in a process that finds packages in these folders, too; a failure shows what it printed."""
    paths = [*map(str, search), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | variables

    def run(*arguments: object, cwd: Path, code: int = 0) -> processes.Finished:
        done = processes.run([sys.executable, "-m", "sts_pipelines", *arguments], cwd=cwd, env=environment)
        assert done.returncode == code, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Sts:
    """`sts` beside the example package, installed from its wheel."""
    if UV is None:
        pytest.skip("uv builds and installs the wheel: run the tests through ci/test")
    folder = tmp_path_factory.mktemp("simsiam")
    for step in (
        [UV, "build", "--quiet", "--wheel", "--out-dir", folder / "wheels", SIMSIAM],
        [UV, "pip", "install", "--quiet", "--no-deps", "--target", folder / "site"],
    ):
        wheel = [] if "build" in step else list((folder / "wheels").glob("*.whl"))
        done = processes.run([*step, *wheel], cwd=folder)
        assert done.returncode == 0, done.stderr
    return command(folder / "site")


def test_the_example_package_has_fewer_than_150_lines() -> None:
    files = [path for path in SIMSIAM.rglob("*") if path.suffix in (".py", ".toml")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 150


@pytest.mark.packaging
def test_sts_lists_shows_and_checks_what_a_package_brings(installed: Sts, tmp_path: Path) -> None:
    assert "simsiam-stripes-sts" in installed("list", "simsiam", cwd=tmp_path).stdout
    shown = installed("show", "simsiam-stripes-sts", "--method.dim", "16", cwd=tmp_path).stdout
    assert "  kind: sim_siam\n" in shown
    assert "  dim: 16\n" in shown
    flags = installed("show", "simsiam-stripes-sts", "--flags", cwd=tmp_path).stdout
    assert "--method.bottleneck  (16)\n    Hidden width of the predictor." in flags
    assert "check passed" in installed("check", "simsiam-stripes-sts", cwd=tmp_path).stdout


@pytest.mark.packaging
def test_sts_runs_evaluates_exports_and_reports_what_a_package_brings(installed: Sts, tmp_path: Path) -> None:
    printed = installed("run", "simsiam-stripes-sts", cwd=tmp_path).stdout
    assert "spread teacher" in printed
    (run,) = (tmp_path / "runs").glob("simsiam-stripes-sts-*")
    assert "teacher.safetensors" in {file.name for file in run.iterdir()}
    installed("evaluate", run, "--only", "knn", "--evaluation.knn.ks", "1", cwd=tmp_path)
    installed("export", run, "--to", "timm", "--output", "backbone.safetensors", cwd=tmp_path)
    assert (tmp_path / "backbone.safetensors").is_file()
    installed("report", run, cwd=tmp_path)
    report = (run / "report" / "report.md").read_text()
    assert "Spread of features" in report
    assert "sim\\_siam" in report


@pytest.mark.packaging
@pytest.mark.parametrize(
    "workers", [0, pytest.param(1, marks=[pytest.mark.ray, pytest.mark.slow])], ids=["in this process", "on Ray"]
)
def test_sts_sweeps_what_a_package_brings(installed: Sts, workers: int, tmp_path: Path) -> None:
    installed("sweep", "simsiam-stripes-p-by-m", "--cluster.num-workers", workers, cwd=tmp_path)
    (folder,) = (tmp_path / "runs").glob("simsiam-stripes-*")
    rows = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert sorted(row["trial"] for row in rows) == ["m0.9-p0", "m0.9-p0.5"]
    assert all(0.0 <= float(row["knn/teacher/top1"]) <= 100.0 and not row["note"] for row in rows)
    installed("report", *sorted(folder.glob("m0.9-*")), "--output", "page", cwd=tmp_path)
    assert "Spread of features" in (tmp_path / "page" / "report.md").read_text()


OWN_PIPELINE = '''
from sts_pipelines import named

@named("agree-on-stripes", paper="-", hardware="1 CPU core", hours="0.01")
def agree():
    """A training of one step."""
    from sts_methods import DataConfig, TrainingConfig
    from sts_pipelines import ClusterConfig, EvaluationConfig, PipelineConfig
    training = TrainingConfig(
        method=AgreementConfig(), data=DataConfig(dataset="stripes", views="three", image_size=8),
        global_batch_size=8, steps=1,
    )
    cluster = ClusterConfig(num_workers=0, use_gpu=False)
    return PipelineConfig(
        name="agree", training=training, cluster=cluster, evaluation=EvaluationConfig(after_training=())
    )
'''


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 3])
def test_a_module_of_the_current_folder_is_imported_wherever_the_flag_stands(tmp_path: Path, place: int) -> None:
    (tmp_path / "mine.py").write_text(MODULE + OWN_PIPELINE)
    arguments = ["run", "agree-on-stripes", "--seed=3"]
    arguments[place:place] = ["--import", "mine"]
    command()(*arguments, cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert "kind: all_agree" in (run / "config.yaml").read_text()
    listed = command(STS_IMPORT="mine")("list", "agree", cwd=tmp_path).stdout
    assert "agree-on-stripes" in listed


def test_a_module_that_cannot_be_imported_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import a_package_that_is_not_here\n")
    done = command()("list", "--import=mine", cwd=tmp_path, code=2)
    reason = "ModuleNotFoundError: No module named 'a_package_that_is_not_here'"
    assert done.stderr == f"sts: the module mine (--import or STS_IMPORT) cannot be imported: {reason}\n"


def test_a_broken_package_is_reported_and_does_not_keep_the_others_from_working(tmp_path: Path) -> None:
    about = tmp_path / "site" / "sts_broken-1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sts-broken\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text("[sts.pipelines]\nbroken = a_module_that_is_not_here\n")
    done = command(tmp_path / "site")("list", "quickstart", cwd=tmp_path)
    assert "quickstart" in done.stdout
    left_out = "broken of sts-broken 1.2 (sts.pipelines) is left out, since it cannot be imported: ModuleNotFoundError"
    assert left_out in done.stderr


def test_other_packages_keep_sts_list_free_of_torch(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_PIPELINE)
    code = (
        "import sys; from sts_pipelines.cli.main import main; main(['list', 'agree', '--import', 'mine']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = processes.run([sys.executable, "-c", code], cwd=tmp_path)
    assert (done.returncode, "agree-on-stripes" in done.stdout) == (0, True), done.stderr
