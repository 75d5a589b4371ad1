"""The way to the hub, which nothing takes unless it is asked to."""

import re
from pathlib import Path

from sts_pipelines.errors import RunError, UsageError, first_line


def check_repository(name: str) -> None:
    """Raise unless `name` is OWNER/NAME."""
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", name, re.ASCII) is None:
        raise UsageError(f"--push takes a repository of the hub, OWNER/NAME, got {name!r}")


def push(folder: Path, repository: str) -> str:
    """Upload `folder` to a repository of the hub, private if it is new, in one commit; returns its address."""
    import huggingface_hub

    hub = huggingface_hub.HfApi(library_name="sts")
    try:
        made = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="sts export")
    except Exception as error:  # the hub, its HTTP client and the disk each have their own; the remedy is the same
        raise RunError(
            f"{repository} could not be pushed ({first_line(error)}): {folder} holds what was to be sent, "
            "`hf auth login` lets you in, and the same command tries again"
        ) from error
    return str(made)
