"""Slurm on this machine alone: munged, slurmctld and two slurmd, with ports, sockets and files of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.integration.processes import Proc, free_port, new_mark, wait_until

NODES = ("left", "right")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")


def why_not() -> str | None:
    """Why there is no Slurm to test with; None where there is."""
    missing = [p for p in PROGRAMS if program(p) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: slurmctld slurmd munge slurm-client)"
    return None if os.geteuid() == 0 else "slurmd needs root"


def program(name: str) -> str | None:
    """Where a program is; daemons are in sbin, which is not on every PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class Slurm:
    """Two nodes that are this machine. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = new_mark()
        self.procs: list[Proc] = []
        self.conf = folder / "slurm.conf"

    def __enter__(self) -> Slurm:
        self.folder.chmod(0o755)
        for name in ("state", "log", "munge", *NODES):
            (self.folder / name).mkdir(mode=0o755)
        self._munge()
        self._write_conf()
        self._start("slurmctld", "-D", "-i", "-f", str(self.conf))
        for node in NODES:
            self._start("slurmd", "-D", "-N", node, "-f", str(self.conf))
        wait_until(lambda: self.run("sinfo", "-h", "-o", "%T").stdout.split() == ["idle"], 60, self.tails, poll_s=0.5)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not None:
            print(self.tails())
        self.run("scancel", "--full", "-u", "root")
        deadline = time.monotonic() + 40
        while self.run("squeue", "-h").stdout.strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for proc in reversed(self.procs):
            proc.end()

    def environment(self) -> dict[str, str]:
        """For Slurm's commands."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def run(self, name: str, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """One of Slurm's commands."""
        command = [program(name) or name, *words]
        return subprocess.run(
            command, env={**self.environment(), **(env or {})}, capture_output=True, text=True, timeout=60
        )

    def tails(self) -> str:
        """Ends of all logs."""
        return "\n".join(f"--- {p.name}\n{p.tail(15)}" for p in self.procs)

    def _start(self, name: str, *words: str) -> Proc:
        log = self.folder / "log" / f"{len(self.procs)}-{name}.log"
        command: Sequence[str] = [program(name) or name, *words]
        proc = Proc.start(name, f"{self.mark}:{len(self.procs)}", command, self.environment(), log)
        self.procs.append(proc)
        return proc

    def _munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        self._start("munged", "--foreground", "--force", *(f"--{k}={folder / v}" for k, v in files.items()))
        wait_until((folder / "socket").exists, 20, self.tails)

    def _write_conf(self) -> None:
        host = subprocess.run(["hostname", "-s"], capture_output=True, text=True, check=True).stdout.strip()
        ports = [free_port() for _ in range(3)]
        cpus = os.cpu_count() or 1
        nodes = "".join(
            f"NodeName={n} NodeHostname={host} NodeAddr=127.0.0.1 Port={p} CPUs={cpus}\n"
            for n, p in zip(NODES, ports[1:], strict=True)
        )
        self.conf.write_text(
            f"ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={ports[0]}\n"
            f"SlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={self.folder}/munge/socket\n"
            f"CredType=cred/munge\nStateSaveLocation={self.folder / 'state'}\nSlurmdSpoolDir={self.folder}/%n\n"
            f"SlurmctldPidFile={self.folder}/ctld.pid\nSlurmdPidFile={self.folder}/%n.pid\n"
            "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n"
            "SelectType=select/cons_tres\nSchedulerType=sched/builtin\nKillWait=15\nSlurmctldTimeout=300\n"
            "SlurmdTimeout=300\nSwitchType=switch/none\nJobAcctGatherType=jobacct_gather/none\n"
            f"{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        )
