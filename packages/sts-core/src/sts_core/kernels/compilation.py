"""How native.c becomes a library, in a wheel's build or at first use; both need the standard library alone."""

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("native.c")
_COMMON = ["-O3", "-ffp-contract=off", "-std=gnu11", "-shared", "-fPIC"]
_AVX2 = ["-mavx2", "-mfma", "-mbmi2"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
_INSTRUCTION_SETS = {"baseline": [], "avx2": _AVX2, "avx512": _AVX512}


def instruction_sets() -> list[str]:
    """What a wheel for this kind of processor holds, the plainest first; every one gives the same bits."""
    return list(_INSTRUCTION_SETS) if platform.machine().lower() in ("x86_64", "amd64") else ["baseline"]


def library_name(instruction_set: str) -> str:
    """The file's name in a wheel, beside native.c."""
    return f"native-{instruction_set}.so"


def flags(instruction_set: str) -> list[str]:
    """What the compiler is told beyond the files."""
    return [*_COMMON, *_INSTRUCTION_SETS[instruction_set]]


def _compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name.split()[0])):
            return found
    raise OSError("no C compiler was found")


def compile_library(instruction_set: str, target: Path) -> Path:
    """Compile to a temporary name, then rename, so that processes that build at once do not see half a file."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        command = [_compiler(), *flags(instruction_set), str(SOURCE), "-o", str(built), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{command[0]} failed with {done.stderr.strip()[:500]!r}")
        os.replace(built, target)
    return target
