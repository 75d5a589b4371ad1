"""Packages of this repository need each other in one version, which is written in sts_core; the same file in each."""

from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class OneVersion(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        needed = self.config["dependencies"]
        metadata["dependencies"] = [line.replace("{version}", metadata["version"]) for line in needed]
