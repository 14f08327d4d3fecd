"""The token of the user's runs, where its folder cannot be written."""

import pytest

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
