"""The socket of tmux's server: it is not taken from a folder that another user has made."""

import os
import socket

import pytest

from launcher.hosts.hosts import run_libtmux
from launcher.supervise import tmux

OTHER = 65534  # a user


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return tmux's folder, which does not exist yet."""
    monkeypatch.setattr(tmux.shutil, "which", lambda _: "/usr/bin/tmux")
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    return tmp_path / f"tmux-{os.getuid()}"


def _belongs_to_another(folder):
    folder.mkdir(mode=0o700)
    os.chown(folder, OTHER, OTHER)


def _is_open_to_all(folder):
    folder.mkdir()
    folder.chmod(0o777)


def _is_a_link(folder):
    folder.symlink_to("/var/tmp")


def test_a_folder_is_made_and_used_again(folder):
    for _ in range(2):
        assert tmux.default_socket() == str(folder / "default")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("how", [_belongs_to_another, _is_open_to_all, _is_a_link])
def test_a_folder_of_others_is_not_used(folder, how):
    if how is _belongs_to_another and os.geteuid():
        pytest.skip("only root can give a folder to another user")
    how(folder)
    assert not tmux.default_socket()


@pytest.mark.parametrize("program", [tmux.run_program, run_libtmux])
def test_a_server_in_a_folder_of_others_gets_nothing_from_us(folder, program):
    """The folder was the user's when the socket was recorded, and was removed later."""
    path = tmux.default_socket()
    assert path
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        session = tmux.Session("impala", path, program)
        assert not session.exists()
        with pytest.raises(tmux.TmuxError, match="does not belong to this user alone: remove it"):
            session.open_windows({"actor0": folder})
        server.settimeout(0.2)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_server_that_the_user_is_in_is_used(folder, monkeypatch):
    _is_open_to_all(folder)
    monkeypatch.setenv("TMUX", "/run/mine/socket,1,2")
    assert tmux.default_socket() == "/run/mine/socket"
