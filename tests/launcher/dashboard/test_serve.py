"""The start of a dashboard: its address, its token, its port, and what it does not load."""

import re
import sys

import pytest
from processes import run

from impala_mm.config import flags
from impala_mm.config.errors import BadSettings
from launcher.dashboard import serve
from launcher.dashboard.site import Site


@pytest.fixture(autouse=True)
def refusals():
    """Let refusals be raised instead of ending the tests."""
    with flags.refusals_raised():
        yield


def test_a_token_file_is_created_once_and_refused_if_it_is_none(tmp_path):
    path = tmp_path / "token"
    token = serve.read_token(str(path))
    assert (len(token), path.stat().st_mode & 0o777) == (22, 0o600)
    assert serve.read_token(str(path)) == token
    path.write_text("short")
    with pytest.raises(BadSettings, match="it must hold 16 to 200 letters"):
        serve.read_token(str(path))
    with pytest.raises(BadSettings, match=r"dashboard_token_file=.*No such file"):
        serve.read_token(str(tmp_path / "no" / "token"))


def test_a_port_that_is_taken_is_refused_and_without_one_the_next_is_taken():
    site = Site(None, "token", False, "")
    first = serve._listen(site, 0)
    second = serve._listen(site, 0)
    try:
        assert second.port > first.port >= 8600
        with pytest.raises(BadSettings, match=f"port={first.port}: Address already in use"):
            serve._listen(site, first.port)
    finally:
        first.server_close()
        second.server_close()


def test_the_address_of_a_dashboard_and_the_way_there_from_elsewhere_are_printed():
    first, second, third = serve.describe(8600, "abc", "runs", False)
    assert first == "dashboard: http://127.0.0.1:8600/abc/"
    assert re.search(
        r"ssh -N -L 127.0.0.1:8600:127.0.0.1:8600 \S+@\S+, then the same address", second
    )
    assert "it only reads" in third
    assert "it can save, stop and change them" in serve.describe(1, "a", "b", True)[2]


def test_a_dashboard_loads_neither_tensorflow_nor_what_connects_to_hosts():
    """It shares the machine with the run."""
    program = (
        "import sys, experiment, launcher.dashboard.serve;"
        "print({m.split('.')[0] for m in sys.modules} & {'tensorflow', 'paramiko', 'numpy'})"
    )
    assert run(sys.executable, "-c", program) == (0, "set()\n")
