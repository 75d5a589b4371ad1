"""Builds the null GPU with the system's C compiler, from the headers that the wheels of torch's CUDA libraries bring.

    libnullgpu.so   CUDA's runtime, cuBLAS, cuDNN, cuSOLVER and NCCL, to be preloaded
    libcuda.so.1    CUDA's driver, for Triton

`library/` holds the functions that hand something back or have to be counted. All others that torch links to get a stub
which returns 0, success in each of these libraries; the stub counts if the name is that of a computation.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from tests import processes

SOURCES = Path(__file__).with_name("library")
SITE = Path(torch.__file__).parents[1]
_DRIVER = "driver.c"
_LINKED = re.compile(r"(cuda|__cuda|cublas|cudnn|cusolver|nccl)[A-Za-z_]")
_COMPUTATIONS = {
    "CUBLAS": r"cublas(?!.*bufferSize).*(gemm|gemv|Matmul$|dot|trsm|getr|geqrf|gels|axpy|scal|nrm2)",
    "CUDNN": r"cudnn(Convolution|BatchNorm|Pooling|SpatialTf|RNNForward|RNNBackward|CTCLoss)",
    "CUSOLVER": r"cusolverDn(?!.*(bufferSize|Create|Destroy|Set|Get)).*(potr|getr|geqrf|ormqr|orgqr|sye|gesv|sytrf)",
}


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why there can be no null GPU here; "" if there can be."""
    if sys.platform != "linux":
        return "the null GPU is preloaded, which needs Linux"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is no CUDA build"
    if torch.cuda.is_available():
        return "this machine has GPUs"
    if not (_compiler() and shutil.which("nm")):
        return "the null GPU is built here, and there is no C compiler with nm"
    missing = [name for name in ("cuda_runtime_api.h", "cudnn.h", "nccl.h") if not _header(name)]
    return f"torch's CUDA wheels bring no {' or '.join(missing)}" if missing else ""


@lru_cache(maxsize=1)
def build() -> Path:
    """The folder of the two libraries, built once per version of torch and of the sources."""
    folder = _cache() / _key()
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            made = Path(temporary) / "made"
            _build(made)
            try:
                made.rename(folder)
            except OSError:  # another process was faster
                assert folder.exists()
    return folder


def _build(folder: Path) -> None:
    folder.mkdir()
    sources = sorted(SOURCES.glob("*.c"))
    objects = {source.name: _compile(source, folder) for source in sources}
    driver = objects.pop(_DRIVER)
    defined = set().union(*(_symbols(path, "--defined-only") for path in objects.values()))
    stubs = _stubs(_linked_names() - defined, folder / "stubs.c")
    driver_stubs = _stubs(_driver_names() - _symbols(driver, "--defined-only"), folder / "driver_stubs.c")
    _run(_compiler(), "-shared", "-o", folder / "libnullgpu.so", *objects.values(), stubs, "-lpthread")
    _run(
        _compiler(), "-shared", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", driver, driver_stubs, "-ldl"
    )
    for path in (*objects.values(), driver, stubs, driver_stubs):
        path.unlink()


def _compile(source: Path, folder: Path) -> Path:
    target = folder / f"{source.stem}.o"
    includes = [f"-I{path}" for path in (SOURCES, *_includes())]
    # -w: most arguments of most functions are not used, on purpose.
    _run(_compiler(), "-c", "-O1", "-w", "-fPIC", "-fno-builtin", *includes, source, "-o", target)
    return target


def _stubs(names: set[str], path: Path) -> Path:
    """Compiled functions that return 0, without arguments: C's callers clear the stack themselves."""
    path.write_text(
        '#include "counting.h"\n' + "".join(f"int {name}(void) {{ {_body(name)} }}\n" for name in sorted(names))
    )
    return _compile(path, path.parent)


def _body(name: str) -> str:
    kinds = [kind for kind, pattern in _COMPUTATIONS.items() if re.match(pattern, name, re.IGNORECASE)]
    return "".join(f'nullgpu_count({kind}, "{name}", 0); ' for kind in kinds) + "return 0;"


def _linked_names() -> set[str]:
    """The functions of CUDA's libraries that torch and torchvision are linked to."""
    libraries = [
        *SITE.glob("torch/lib/libtorch_*.so"),
        SITE / "torch/lib/libc10_cuda.so",
        *SITE.glob("torchvision/_C*.so"),
    ]
    found = set().union(*(_symbols(path, "--undefined-only") for path in libraries))
    return {name for name in found if _LINKED.match(name)}


def _driver_names() -> set[str]:
    """The functions of the driver that cuda.h declares or that torch looks up by name."""
    header = _header("cuda.h").read_text()
    names = set(re.findall(r"\b(cu[A-Z][A-Za-z0-9]+(?:_v\d)?)\b *\(", header))
    names |= set(re.findall(r"#define +cu[A-Z]\w+ +\S*?(cu[A-Z][A-Za-z0-9]+_v\d)", header))
    for name in ("libc10_cuda.so", "libcaffe2_nvrtc.so"):
        text = (SITE / "torch/lib" / name).read_bytes().decode("latin1")
        names |= set(re.findall(r"\x00(cu[A-Z][A-Za-z0-9]+(?:_v\d)?)(?=\x00)", text))
    return names


def _symbols(path: Path, which: str) -> set[str]:
    listing = _run("nm", *(["-D"] if path.suffix == ".so" else []), which, path)
    return {line.split()[-1].partition("@")[0] for line in listing.splitlines() if line.strip()}


def _run(*command: object) -> str:
    done = processes.run(command)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _compiler() -> str | None:
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


def _includes() -> list[Path]:
    return [*sorted(SITE.glob("nvidia/*/include")), SITE / "triton/backends/nvidia/include"]


def _header(name: str) -> Path | None:
    return next((folder / name for folder in _includes() if (folder / name).exists()), None)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sts" / "null_gpu"


def _key() -> str:
    digest = hashlib.sha256(torch.__version__.encode())
    for path in (Path(__file__), *sorted(SOURCES.iterdir())):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
