"""The token file of the user's runs: who makes it, what it contains, and where that fails."""

import os
import subprocess
import sys

import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.runtime import certificates, run_token
from impala_mm.transport.tls import ACTOR, Credentials


def test_a_configuration_folder_that_cannot_be_written_is_named_with_its_variable(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as ended:
        run_token.read_token(Config())
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/file/impala_mm/token (Not a directory)" in said
    assert "XDG_CONFIG_HOME" in said
    own = tmp_path / "token"
    assert run_token.read_token(Config(token_file=str(own))) == own.read_text()
    own.chmod(0o644)
    with pytest.raises(SystemExit):
        run_token.read_token(Config(token_file=str(own)))
    assert "--token_file: " in capsys.readouterr().err


def test_a_file_of_an_earlier_version_keeps_its_secret_and_gets_certificates(tmp_path):
    old = tmp_path / "token"
    old.write_text("secret\n")
    old.chmod(0o600)
    assert run_token.read_token(Config(token_file=str(old), transport_security="none")) == "secret"
    assert old.read_text() == "secret\n"
    content = run_token.read_token(Config(token_file=str(old)))
    secret, _, pem = content.partition("\n")
    assert secret == "secret"
    assert (pem.count("BEGIN CERTIFICATE"), pem.count("BEGIN PRIVATE KEY")) == (3, 2)
    assert old.read_text() == content
    assert old.stat().st_mode & 0o777 == 0o600
    assert run_token.read_token(Config(token_file=str(old))) == content
    assert run_token.read_token(Config(token_file=str(old), transport_security="none")) == "secret"
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_host_without_learners_needs_only_the_certificate_of_actors(tmp_path, capsys):
    path = tmp_path / "token"
    whole = run_token.read_or_make(str(path))
    path.write_text(certificates.without_learner(whole))
    config = Config(token_file=str(path))
    parts, credentials = Credentials.parse(whole), Credentials.parse(run_token.read_token(config))
    assert credentials == parts._replace(learner="")
    credentials.context(ACTOR)
    assert certificates.without_learner(path.read_text()) == path.read_text()
    with pytest.raises(SystemExit) as ended:
        run_token.describe(config)
    assert ended.value.code == 2
    assert f"{path} is the token file of a host without learners" in capsys.readouterr().err


def _without_secret(content):
    return content.partition("\n")[2]


def _with_swapped_roles(content):
    parts = Credentials.parse(content)
    return "\n".join([parts.token, parts.authority, parts.actor, parts.learner])


def _with_learner_only(content):
    parts = Credentials.parse(content)
    return "\n".join([parts.token, parts.authority, parts.learner])


def _with_key_first(content):
    secret = content.partition("\n")[0]
    authority, certificate, key, *actor = certificates.split(content)
    return "\n".join([secret, authority, key, certificate, *actor])


def _without_end(content):
    return content[:-300]


_DAMAGES = [_without_secret, _with_swapped_roles, _with_learner_only, _with_key_first]


@pytest.mark.parametrize("change", [*_DAMAGES, _without_end])
def test_a_file_whose_parts_are_not_where_they_belong_is_refused(tmp_path, capsys, change):
    path = tmp_path / "token"
    path.write_text(change(run_token.make()))
    path.chmod(0o600)
    for security in ("auto", "none"):
        with pytest.raises(SystemExit):
            run_token.read_token(Config(token_file=str(path), transport_security=security))
        assert f"{path} is damaged" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read another user's file")
def test_another_users_file_is_used_only_from_a_folder_that_not_everybody_can_write(
    tmp_path, capsys
):
    """Root may have the user's own file, as in a container; but not one that anybody made."""
    path = tmp_path / "token"
    content = run_token.read_or_make(str(path))
    os.chown(path, 65534, 65534)
    config = Config(token_file=str(path))
    assert run_token.read_token(config) == content
    tmp_path.chmod(0o1777)
    with pytest.raises(SystemExit):
        run_token.read_token(config)
    assert f"{path} belongs to another user" in capsys.readouterr().err


def test_processes_that_start_at_the_same_time_have_the_same_file(tmp_path):
    old = tmp_path / "old"
    old.write_text("secret")
    old.chmod(0o600)
    program = (
        "import sys; from impala_mm.runtime import run_token;"
        "print(*map(run_token.read_or_make, sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "new"), str(old)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(6)]
    assert len({process.communicate()[0] for process in running}) == 1


def test_where_certificates_cannot_be_made_the_command_that_copies_them_is_printed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    token = tmp_path / "token"
    with pytest.raises(SystemExit) as ended:
        run_token.read_token(Config(token_file=str(token)))
    assert ended.value.code == 2
    assert "scp HOST:.config/impala_mm/token ~/.config/impala_mm/token" in capsys.readouterr().err
    assert len(run_token.read_token(Config(token_file=str(token), transport_security="none"))) == 64
