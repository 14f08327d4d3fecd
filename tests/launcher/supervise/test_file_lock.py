"""Locked files, also where the file system has no locks."""

import errno
import fcntl
import os

import pytest

from launcher.supervise import file_lock


def test_a_lock_is_held_until_its_descriptor_is_closed(tmp_path):
    path = tmp_path / "lock"
    lock = file_lock.acquire(path)
    assert file_lock.is_held(path)
    assert file_lock.acquire(path, timeout=0.2) is None
    os.close(lock)
    assert not file_lock.is_held(path)


def test_a_file_system_without_locks_is_named_and_nothing_there_is_held(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    path.touch()

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not file_lock.is_held(path)
    with pytest.raises(OSError, match="No locks available") as error:
        file_lock.acquire(path)
    assert error.value.filename == str(path)
