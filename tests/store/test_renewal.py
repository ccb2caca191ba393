"""When certificate files count as renewed: changed in whatever way, and fitting together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from heet_elastic.store.etcd import EtcdSettings, parse_endpoints
from heet_elastic.store.etcd.renewal import CertificateWatch, fit, stamp
from tests.store.certificates import Authority
from tests.store.labs import wait_until


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


def test_rewriting_replacing_and_relinking_a_file_are_seen(tmp_path: Path) -> None:
    first, second, file, link = (tmp_path / name for name in ("first", "second", "file", "link"))
    assert stamp(str(link)) is None
    first.write_text("1")
    second.write_text("2")
    link.symlink_to(first)
    before = stamp(str(link))
    link.unlink()
    link.symlink_to(second)
    assert stamp(str(link)) not in (before, None)

    shutil.copy2(first, file)
    before = stamp(str(file))
    file.write_text("22")
    rewritten = stamp(str(file))
    first.replace(file)
    assert len({before, rewritten, stamp(str(file))}) == 3


def test_a_half_written_renewal_is_not_taken_up(tmp_path: Path, ca: Authority) -> None:
    mine, renewed = ca.issue("mine"), ca.issue("renewed")
    settings = EtcdSettings(parse_endpoints("h"), cacert=ca.cacert, cert=mine.cert, key=mine.key)
    assert fit(settings)
    Path(mine.cert).write_bytes(Path(renewed.cert).read_bytes())
    assert not fit(settings)
    Path(mine.key).write_bytes(Path(renewed.key).read_bytes()[:40])
    assert not fit(settings)
    Path(mine.key).unlink()
    assert not fit(settings)
    Path(mine.key).write_bytes(Path(renewed.key).read_bytes())
    assert fit(settings)


def test_a_change_is_told_once(tmp_path: Path, ca: Authority) -> None:
    mine, told = ca.issue("mine"), list[int]()
    settings = EtcdSettings(parse_endpoints("h"), cacert=ca.cacert, cert=mine.cert, key=mine.key)
    watch = CertificateWatch(settings, lambda: told.append(1), period_s=0.01)
    watch.start()
    for n in range(1, 4):
        ca.issue("mine")
        wait_until(lambda n=n: len(told) == n)  # type: ignore[misc]
    watch.close()
    assert len(told) == 3
