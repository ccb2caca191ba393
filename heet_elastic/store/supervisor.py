"""Runs one program and ends it when standard input ends. Started as a script, by path, with the standard library alone.

    python -I -S supervisor.py PROGRAM ARGUMENT...

Writes the program's process id as one line. Orders are single bytes on standard input: `t` = SIGTERM, `k` = SIGKILL;
the end of the input kills. Ends when the program has ended. The program's standard output goes to standard error.
"""

import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1


def _become(program: list[str], supervisor: int) -> None:
    """In the child: die with the supervisor, then turn into the program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:  # it died before the line above
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.execv(program[0], program)  # noqa: S606 (no shell on purpose)


def main(program: list[str]) -> None:
    """Run `program` until it ends or we are told to end it."""
    supervisor = os.getpid()
    # Only the program holds the writing end, without knowing: when it ends, however it ends, the reading end says so.
    ended, alive = os.pipe()
    os.set_inheritable(alive, True)
    pid = os.fork()
    if pid == 0:
        try:
            _become(program, supervisor)
        finally:
            os._exit(127)
    os.close(alive)
    os.write(1, b"%d\n" % pid)
    while True:
        ready = select.select([0, ended], [], [])[0]
        if ended in ready:
            break
        order = os.read(0, 1)
        os.kill(pid, signal.SIGTERM if order == b"t" else signal.SIGKILL)
        if order == b"":
            break
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
