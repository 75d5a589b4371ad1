"""Run folders on disk: which runs a path holds, and the pipeline that made each."""

from collections.abc import Sequence
from pathlib import Path

from sts_pipelines.config.flags import apply_flags
from sts_pipelines.config.pipeline import PipelineConfig
from sts_pipelines.config.plain import from_dict
from sts_pipelines.config.storage_path import is_uri, local_folder
from sts_pipelines.config.yaml_text import read_yaml
from sts_pipelines.errors import UsageError


def run_folders(path: str, pattern: str = "*/config.yaml") -> list[Path]:
    """The folder of a run, or the runs (what has a file like `pattern`) in that of a comparison or a sweep."""
    folder = Path(path)
    if is_uri(path):
        storage, _, name = path.rstrip("/").rpartition("/")
        raise UsageError(
            f"{path} must be a folder on this machine: copy the run here first, or pass the folder that it worked in, "
            f"{local_folder(storage, name)} on the machine that started it"
        )
    inner = [] if (folder / "checkpoints").is_dir() else sorted({file.parent for file in folder.glob(pattern)})
    return inner or [folder]


def read_run(folder: Path, overrides: Sequence[str] = ()) -> PipelineConfig:
    """The pipeline that made a run folder, with overrides."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UsageError(f"{folder} is not a run folder (it has no config.yaml): pass one that sts run made")
    plain = read_yaml(path.read_text(encoding="utf-8", errors="replace"), source=str(path))
    plain.pop("kind", None)
    return from_dict(PipelineConfig, apply_flags(PipelineConfig, plain, overrides))
