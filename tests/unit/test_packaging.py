"""What an installed heet-elastic holds, and that importing any part of it drags in nothing that it must not."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.checkout import ROOT, announce_entry_points, project

TORCH_FREE = ("errors", "model", "predictor", "scheduler", "store", "coordinator", "simulator", "dashboard", "cli")


def run_python(code: str, folder: Path, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter that sees the checkout and its entry points."""
    path = [str(ROOT), *announce_entry_points(folder), *filter(None, [env.pop("PYTHONPATH", "")])]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HEET_", "TORCHELASTIC_"))}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env={**kept, "PYTHONPATH": os.pathsep.join(path), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def copy_of_tracked_files(target: Path) -> Path:
    """The checkout as a clone would have it, links kept as links."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, names.stdout.decode().split("\0")):
        source, copy = ROOT / name, target / name
        if source.is_symlink() or source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                copy.symlink_to(source.readlink())
            else:
                copy.write_bytes(source.read_bytes())
    return target


def build(kind: str, source: Path, out: Path) -> Path:
    """Build a `wheel` or an `sdist` with the backend itself: no index is asked."""
    out.mkdir(parents=True, exist_ok=True)
    code = f"import setuptools.build_meta as b, sys; print(b.build_{kind}(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """The wheel built from the checkout, and the one built from the sdist."""
    folder = tmp_path_factory.mktemp("build")
    checkout = copy_of_tracked_files(folder / "checkout")
    sdist = build("sdist", checkout, folder / "sdist")
    (folder / "unpacked").mkdir()
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(folder / "unpacked")], check=True)
    (unpacked,) = (folder / "unpacked").iterdir()
    sources = {"checkout": checkout, "sdist": unpacked}
    return {name: zipfile.ZipFile(build("wheel", source, folder / name / "dist")) for name, source in sources.items()}


@pytest.mark.parametrize("source", ["checkout", "sdist"])
def test_the_wheel_holds_the_linked_packages_and_nothing_else_at_its_top(wheels, source: str):
    names = wheels[source].namelist()
    for room in ("rendezvous", "agents"):
        wanted = {f"heet_elastic/{room}/{p.relative_to(ROOT / room)}" for p in (ROOT / room).rglob("*.py")}
        assert wanted <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"heet_elastic", f"heet_elastic-{project()['version']}.dist-info"}
    assert "heet_elastic/py.typed" in names


def test_the_wheel_from_the_sdist_is_the_wheel_from_the_checkout(wheels):
    assert sorted(wheels["sdist"].namelist()) == sorted(wheels["checkout"].namelist())


def test_the_wheel_announces_the_backend_the_sampler_and_the_commands(wheels):
    name = f"heet_elastic-{project()['version']}.dist-info/entry_points.txt"
    text = wheels["checkout"].read(name).decode()
    assert "[torchrun.handlers]\nheet = heet_elastic.rendezvous:entry_point" in text
    assert "[torch.backends]\nheet = heet_elastic.agents.autostart:start" in text
    assert "heet-coordinator = " in text


@pytest.mark.parametrize("name", ["agents", "rendezvous"])
def test_a_linked_package_refuses_to_be_imported_under_its_bare_name(name: str, tmp_path: Path):
    done = run_python(f"import {name}", tmp_path)
    assert done.returncode != 0
    assert (
        f"ImportError: import heet_elastic.{name} (the folder {name}/ is reached through heet_elastic)" in done.stderr
    )


def test_every_part_but_handler_and_sampler_imports_without_torch(tmp_path: Path):
    done = run_python(
        f"""
        import importlib, importlib.util, pkgutil, sys
        sys.modules["torch"] = None  # any import of it raises
        for part in {TORCH_FREE!r}:
            name = "heet_elastic." + part
            if importlib.util.find_spec(name) is None:
                continue
            module = importlib.import_module(name)
            for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
                importlib.import_module(found.name)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", ["predictor", "scheduler", "simulator"])
def test_deciding_and_simulating_need_no_etcd_grpc_or_nvml_either(part: str, tmp_path: Path):
    done = run_python(
        f"""
        import importlib, pkgutil, sys
        sys.modules.update(dict.fromkeys(["torch", "etcd3", "grpc", "pynvml"]))
        module = importlib.import_module("heet_elastic.{part}")
        for found in pkgutil.walk_packages(module.__path__, module.__name__ + "."):
            importlib.import_module(found.name)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


ORDERS = list(
    itertools.permutations(["torch", "torch.distributed.elastic.rendezvous.registry", "heet_elastic.rendezvous"])
)


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: ",".join(name.split(".")[0] + str(len(name)) for name in o))
def test_torch_knows_the_backend_whatever_is_imported_first(order: tuple[str, ...], tmp_path: Path):
    imports = "; ".join(f"import {name}" for name in order)
    code = f"""
        import warnings; warnings.simplefilter("error")
        {imports}
        from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry as registry
        assert "heet" in registry._registry, sorted(registry._registry)
        """
    done = run_python(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_c30_a_foreign_torch_process_sees_nothing_of_heet_where_its_libraries_are_missing(tmp_path: Path):
    done = run_python(
        """
        import sys
        sys.modules.update(dict.fromkeys(["etcd3", "google.protobuf", "grpc", "msgspec", "psutil", "pynvml", "typer"]))
        import torch
        import torch.distributed.elastic.rendezvous.registry
        print(*sorted(name for name in sys.modules if name.startswith("heet_elastic")))
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    light = {"heet_elastic", "heet_elastic.errors", "heet_elastic.reporting"}
    light |= {"heet_elastic.rendezvous", "heet_elastic.agents", "heet_elastic.agents.autostart"}
    assert set(done.stdout.split()) <= light


def test_c30_the_backend_says_what_to_install_where_its_libraries_are_missing(tmp_path: Path):
    done = run_python(
        """
        import sys
        sys.modules.update(dict.fromkeys(["etcd3", "grpc"]))
        sys.argv = "torchrun --rdzv-backend=heet --rdzv-endpoint=127.0.0.1:1 --rdzv-id=j --nnodes=1 x.py".split()
        from torch.distributed.run import main
        main()
        """,
        tmp_path,
    )
    assert done.returncode != 0
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr
