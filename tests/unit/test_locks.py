"""Lock files: names, folders, other users, odd files."""

from __future__ import annotations

import contextlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heet_elastic.agents import locks
from heet_elastic.agents.locks import Busy, Held
from heet_elastic.errors import UsageError

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs to change users: run as root")


def refused(folder, device="GPU-1", owner="job y") -> Busy:
    busy = locks.take(folder, device, owner)
    assert isinstance(busy, Busy)
    return busy


@contextlib.contextmanager
def another_user():
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "locks"
    locks.prepare(folder)
    for parent in folder.parents:
        if parent.owner() == "root" and parent.stat().st_mode & 0o001 == 0:
            parent.chmod(parent.stat().st_mode | 0o011)  # pytest's folders are closed to others
    return folder


def taken(folder, device="GPU-1", owner="job x") -> Held:
    held = locks.take(folder, device, owner)
    assert isinstance(held, Held)
    return held


def test_the_folder_is_made_for_all_users_whatever_the_umask(tmp_path):
    old = os.umask(0o077)
    try:
        locks.prepare(tmp_path / "locks")
        held = taken(tmp_path / "locks")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE(os.fstat(held.descriptor).st_mode) == 0o666
    locks.free(held)


@pytest.mark.parametrize("kind", ["file", "link", "below a file"])
def test_a_lock_folder_that_cannot_be_used_is_a_sentence(tmp_path, kind):
    (tmp_path / "other").mkdir()
    folder = tmp_path / "locks"
    if kind == "link":
        folder.symlink_to(tmp_path / "other")
    else:
        folder.write_text("")
    if kind == "below a file":
        folder = folder / "locks"
    with pytest.raises(UsageError, match=r"lock folder .*locks cannot be used: .*Set HEET_LOCK_DIR to"):
        locks.prepare(folder)


@as_root
def test_a_lock_folder_closed_to_this_user_is_a_sentence(folder):
    folder.chmod(0o755)
    with another_user(), pytest.raises(UsageError, match="may not write"):
        locks.prepare(folder)


def test_the_folder_is_chosen_by_one_rule_for_all_users(tmp_path):
    assert locks.lock_dir({"HEET_LOCK_DIR": str(tmp_path)}) == tmp_path
    default = locks.lock_dir({})
    assert locks.lock_dir({"HEET_LOCK_DIR": ""}) == default
    if os.geteuid() == 0:
        with another_user():
            assert locks.lock_dir({}) == default


def test_a_lock_is_taken_once_and_again_when_it_is_free(folder):
    held = taken(folder)
    refused(folder)
    assert locks.is_taken(folder, "GPU-1")
    locks.free(held)
    assert not locks.is_taken(folder, "GPU-1")
    locks.free(taken(folder))


def test_looking_at_a_lock_creates_nothing(folder):
    assert not locks.is_taken(folder, "GPU-1")
    assert list(folder.iterdir()) == []


def test_a_freed_lock_is_free_though_a_copy_of_the_descriptor_lives(folder):
    held = taken(folder)
    copy = os.dup(held.descriptor)
    locks.free(held)
    assert not locks.is_taken(folder, "GPU-1")
    os.close(copy)


@as_root
def test_another_users_lock_file_can_be_locked_and_signed(folder):
    locks.free(taken(folder))
    with another_user():
        held = taken(folder, owner="job of nobody")
    busy = refused(folder)
    assert "job of nobody" in busy.holder
    locks.free(held)


@as_root
def test_another_users_unreadable_lock_file_is_busy(folder):
    locks.lock_path(folder, "GPU-1").touch(mode=0o600)
    with another_user():
        busy = refused(folder)
        assert locks.is_taken(folder, "GPU-1")
    assert busy.holder.startswith(f"unreadable lock file {folder}/GPU-1: ")


@as_root
def test_another_users_read_only_lock_file_can_be_locked(folder):
    locks.lock_path(folder, "GPU-1").touch(mode=0o644)
    with another_user():
        locks.free(taken(folder))


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_an_odd_lock_file_is_busy_and_left_alone(folder, tmp_path, kind):
    path = locks.lock_path(folder, "GPU-1")
    target = tmp_path / "precious"
    target.write_text("text")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    busy = refused(folder)
    assert busy.holder.startswith(f"unusable lock file {path}: ")
    assert target.read_text() == "text"


def test_the_holder_is_named_even_if_the_file_says_somebody_else(folder):
    held = taken(folder)
    path = locks.lock_path(folder, "GPU-1")
    path.write_bytes(b"1\nnot me\x1b[31m\n")
    assert locks.holder(path).startswith(f"pid {os.getpid()} (")
    assert "not me" not in locks.holder(path)
    path.write_bytes(f"{os.getpid()}\nred \x1b[31m text\n".encode())
    assert locks.holder(path) == f"pid {os.getpid()} (red [31m text)"
    locks.free(held)


names = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=128)


@given(names, names)
def test_two_devices_never_share_a_file(tmp_path_factory, one, other):
    folder = tmp_path_factory.getbasetemp()
    paths = {locks.lock_path(folder, device) for device in (one, other)}
    assert len(paths) == len({one, other})
    for path in paths:
        assert path.parent == folder
        assert len(os.fsencode(path.name)) <= 255
        assert path.name not in (".", "..")
