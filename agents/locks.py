"""One lock file per device: the local truth about who may put a worker on it.

A device is held by whoever holds an exclusive flock on its file. The kernel frees the lock when the last descriptor of
that open file is closed, so no crash leaves one behind; the files themselves stay and mean nothing. The text in a file
is a courtesy for people ("held by ..."), never evidence, and is treated as untrusted.

The folder is shared by all users of the host (mode 1777). With `fs.protected_regular` a process may not open another
user's file with O_CREAT in such a folder, so files that exist are opened read-only; one that cannot be opened is busy.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from heet_elastic.errors import UsageError
from heet_elastic.store.keys import encode_id

ENV_LOCK_DIR = "HEET_LOCK_DIR"
_LONGEST_NAME = 200  # bytes; most file systems allow 255
_LONGEST_TEXT = 400  # bytes of holder text that are read
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # no symbolic links, no waiting for the other end of a FIFO


@dataclass(frozen=True, slots=True)
class Busy:
    """A device whose lock could not be had, and a phrase that says who holds it."""

    device: str
    holder: str


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that this process holds: close the descriptor with `free` alone."""

    device: str
    descriptor: int


def lock_dir(environ: Mapping[str, str]) -> Path:
    """`HEET_LOCK_DIR`, else a folder that every user of this host arrives at by the same rule.

    /run/lock where the system opens it to everybody (Debian, Ubuntu, SUSE: nothing there is cleaned up by age), else
    /tmp. The rule looks at the mode, not at what this user may do: root and others must agree.
    """
    chosen = environ.get(ENV_LOCK_DIR, "")
    if chosen:
        return Path(chosen)
    with suppress(OSError):
        mode = Path("/run/lock").stat().st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IWOTH and mode & stat.S_ISVTX:
            return Path("/run/lock/heet")
    return Path("/tmp/heet-locks")  # noqa: S108  all users must meet in one place; files are opened without following links


def lock_path(folder: Path, device: str) -> Path:
    """The lock file of a device. Two devices never share one."""
    name = encode_id(device)
    if len(name) > _LONGEST_NAME:
        name = f"{name[:100]}%~{hashlib.sha256(name.encode()).hexdigest()}"  # encode_id never yields "%~"
    return folder / name


def prepare(folder: Path) -> None:
    """Make the folder if it is missing, open to all users. UsageError says what to do when it cannot be used."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir()
            folder.chmod(0o1777)  # mkdir's mode is cut by the umask
        except FileExistsError:
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder") from None
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "this user may not write to it")
    except OSError as e:
        raise UsageError(
            f"the lock folder {folder} cannot be used: {e.strerror}. "
            f"Set {ENV_LOCK_DIR} to a local folder that all users of this host may write to (mode 1777)"
        ) from e


def take(folder: Path, device: str, owner: str) -> Held | Busy:
    """Try to lock a device now, without waiting. `owner` is written into the file where that is allowed."""
    path = lock_path(folder, device)
    for _ in range(10):  # a file that is removed or made in between: again
        try:
            descriptor = _open_or_create(path)
        except FileExistsError:
            continue
        except OSError as e:
            return Busy(device, _unopenable(path, e))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return Busy(device, holder(path))
        except OSError as e:
            os.close(descriptor)
            return Busy(device, _unlockable(path, e))
        if _still_named(path, descriptor):
            _write_text(path, descriptor, f"{os.getpid()}\n{owner}\n")
            return Held(device, descriptor)
        os.close(descriptor)
    return Busy(device, f"nobody, but the lock file {path} is being removed all the time")


def free(held: Held) -> None:
    """Give a lock back. Unlocking first frees it even while another process still has a copy of the descriptor."""
    with suppress(OSError):
        fcntl.flock(held.descriptor, fcntl.LOCK_UN)
    os.close(held.descriptor)


def is_taken(folder: Path, device: str) -> bool:
    """Whether somebody holds the device now (a file that cannot be opened counts as held). Creates nothing.

    Asks for a shared lock: two processes that look at the same time do not see each other.
    """
    try:
        with _opened(lock_path(folder, device)) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def holder(path: Path) -> str:
    """A phrase about who holds this lock file: from the kernel's lock table and the text in the file."""
    pid, text_pid, text = _locking_pid(path), 0, ""
    with suppress(OSError), _opened(path) as descriptor:
        first, _, rest = os.read(descriptor, _LONGEST_TEXT).decode(errors="replace").partition("\n")
        text_pid = int(first) if first.isascii() and first.isdigit() else 0
        text = "".join(c for c in rest.strip() if c.isprintable())
    if text and pid in (0, text_pid):
        ended = "" if Path(f"/proc/{text_pid}").exists() else "; ended, its workers are being stopped"
        return f"pid {text_pid} ({text}{ended})"
    if pid:
        return f"pid {pid} ({_command(pid)})"
    return "a process that cannot be seen from here (another container or user)"


def _open_or_create(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666)
        with suppress(OSError):
            os.fchmod(descriptor, 0o666)  # whatever the umask: another user must be able to lock it and sign it
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | _OPEN)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _still_named(path: Path, descriptor: int) -> bool:
    """Whether the locked file is still the one that others will open (somebody may have removed it meanwhile)."""
    try:
        named = path.lstat()
    except OSError:
        return False
    own = os.fstat(descriptor)
    return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)


def _write_text(path: Path, locked: int, text: str) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | _OPEN)
        try:
            if os.path.sameopenfile(descriptor, locked):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, text.encode(errors="replace")[:_LONGEST_TEXT])
        finally:
            os.close(descriptor)


def _locking_pid(path: Path) -> int:
    """The process that took the flock on this file, from /proc/locks; 0 = not to be seen from here."""
    try:
        status = path.stat()
        table = Path("/proc/locks").read_text()
    except OSError:
        return 0
    # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF"; device numbers are hexadecimal, the inode is not.
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in table.splitlines():
        words = line.split()
        if len(words) >= 6 and words[1] == "FLOCK" and words[3] == "WRITE" and words[5] == wanted:
            return max(0, int(words[4]))
    return 0


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended, its workers are being stopped"
    text = " ".join(w.decode(errors="replace") for w in words if w)
    return "".join(c for c in text if c.isprintable())[:120] or "no command line"


def _unopenable(path: Path, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"unusable lock file {path}: it is a symbolic link; remove it"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"unreadable lock file {path}: {error.strerror}; another user's, with a mode that hides it"
    return f"unusable lock file {path}: {error.strerror}"


def _unlockable(path: Path, error: OSError) -> str:
    return (
        f"unusable lock folder {path.parent}: its file system cannot lock ({error.strerror}); "
        f"set {ENV_LOCK_DIR} to a local folder"
    )
