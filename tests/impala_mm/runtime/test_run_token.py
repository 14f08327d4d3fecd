"""The token file of the user's runs: who makes it, what it contains, and where that fails."""

import subprocess
import sys
import tomllib

import pytest
from processes import ROOT

from impala_mm.config.settings import Config
from impala_mm.runtime import run_token


def test_a_configuration_folder_that_cannot_be_written_is_named_with_its_variable(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    with pytest.raises(SystemExit) as ended:
        run_token.read_token(Config())
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: the token of your runs cannot be kept in {tmp_path}/file/impala_mm/token (Not a "
        f"directory): set XDG_CONFIG_HOME=FOLDER to keep it in another folder, or give "
        f"--token_file=PATH\n"
    )
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


@pytest.mark.parametrize("kept", [-300, 120])
def test_a_file_that_lost_its_end_is_refused_and_nothing_is_sent_in_plain_text(
    kept, tmp_path, capsys
):
    damaged = tmp_path / "token"
    run_token.read_or_make(str(damaged))
    damaged.write_text(damaged.read_text()[:kept])
    with pytest.raises(SystemExit):
        run_token.read_token(Config(token_file=str(damaged)))
    assert f"--token_file: {damaged} is damaged: copy it again, or remove it" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("before", ["", "secret"])
def test_processes_that_start_at_the_same_time_have_the_same_file(tmp_path, before):
    path = tmp_path / "token"
    if before:
        path.write_text(before)
        path.chmod(0o600)
    program = (
        "import sys; from impala_mm.runtime import run_token;"
        "print(run_token.read_or_make(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) for _ in range(8)]
    assert len({process.communicate()[0] for process in running}) == 1


def test_every_installation_can_make_certificates():
    """Also that of one learner, and that of an actor's image, which may start first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(each.startswith("cryptography") for each in project["dependencies"])


def test_where_certificates_cannot_be_made_the_command_that_copies_them_is_printed(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    token = tmp_path / "token"
    with pytest.raises(SystemExit) as ended:
        run_token.read_token(Config(token_file=str(token)))
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert f"no certificates can be made for {token}: the package cryptography cannot be" in printed
    assert "(scp HOST:.config/impala_mm/token ~/.config/impala_mm/token)" in printed
    assert len(run_token.read_token(Config(token_file=str(token), transport_security="none"))) == 64
