"""Builds the stand-in libraries with gcc, once a process, and points a process at them."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", "-fvisibility=hidden")


@functools.cache
def libraries(*, old: bool = False, cuda: bool = True) -> Path:
    """A folder for LD_LIBRARY_PATH with libnvidia-ml.so.1 (`old`: of an old driver), and libcuda.so.1 if wanted."""
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    compile_library("fake_nvml.c", folder / "libnvidia-ml.so.1", "-DOLD" if old else "-UOLD")
    if cuda:
        compile_library("fake_cuda.c", folder / "libcuda.so.1")
    return folder


def compile_library(source: str, library: Path, *flags: str) -> None:
    subprocess.run(["gcc", *FLAGS, *flags, "-o", library, HERE / source], check=True)


def functions() -> list[str]:
    """Every function that the stand-in NVML has."""
    names = subprocess.run(
        ["nm", "-D", "--defined-only", libraries() / "libnvidia-ml.so.1"], check=True, capture_output=True, text=True
    ).stdout.split()
    return sorted(n for n in names if n.startswith("nvml") and n != "nvmlErrorString")
