"""Compiles native.c into the wheel, once for each instruction set; sts_core takes what the processor has.

STS_CORE_PURE=1 makes a pure wheel instead, and so does a machine without a C compiler: there native.c is compiled at
first use, as it is in an editable installation.
"""

import os
import re
import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

OLDEST_GLIBC = (2, 17)  # below it pip knows other names


class KernelBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable" or os.environ.get("STS_CORE_PURE", "0") != "0":
            return
        compilation = run_path(str(Path(self.root, "src/sts_core/kernels/compilation.py")))
        self._folder = tempfile.TemporaryDirectory()
        try:
            kernels = [
                compilation["compile_library"](name, Path(self._folder.name, compilation["library_name"](name)))
                for name in compilation["instruction_sets"]()
            ]
        except OSError as error:
            self.app.display_warning(f"sts-core: a pure wheel, because {error}")
            return
        build_data["force_include"] |= {str(file): f"sts_core/kernels/{file.name}" for file in kernels}
        build_data |= {"pure_python": False, "tag": f"py3-none-{_platform(kernels)}"}


def _platform(kernels: list[Path]) -> str:
    """This platform's tag; with glibc, of the oldest one that has all symbols of the kernels."""
    needed = [re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes()) for file in kernels]
    oldest = max([OLDEST_GLIBC, *((int(major), int(minor)) for found in needed for major, minor in found)])
    tags = sorted(platform_tags(), key=lambda tag: tag.startswith("linux_"))  # indexes do not take that one
    return re.sub(r"^manylinux_\d+_\d+", f"manylinux_{oldest[0]}_{oldest[1]}", tags[0])
