"""The program that mpirun calls, where there is no supervisor; `test_daemon_supervisor` has one."""

import subprocess

from launcher.supervise import mpirun_agent


def _run(agent, *arguments):
    ran = subprocess.run([agent, *arguments], capture_output=True, text=True, check=False)
    assert ran.stdout == ""
    return ran.returncode, ran.stderr


def test_a_host_whose_supervisor_was_not_started_is_an_error(tmp_path):
    folder = tmp_path / "a 'b"
    folder.mkdir()
    agent = mpirun_agent.write(folder, "", {"10.0.0.2": {}})
    for host in ("10.0.0.2", "10.0.0.3"):
        assert _run(agent, host, "prted") == (
            255,
            f"error: the supervisor of mpirun's daemon on {host} is lost: no frontend has started "
            f"it\n",
        )
    assert mpirun_agent.find_silent(mpirun_agent.read(folder)) == ["10.0.0.2"]
    mpirun_agent.end_supervisors(mpirun_agent.read(folder))


def test_what_it_needs_can_be_read_by_its_owner_alone(tmp_path):
    agent = mpirun_agent.write(tmp_path, "secret", {})
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert modes == {"agent": "0o700", "daemons.json": "0o600"}
    assert "secret" not in agent.read_text()


def test_without_other_hosts_nothing_is_waited_for(tmp_path):
    assert mpirun_agent.find_silent(mpirun_agent.read(tmp_path)) == []
    mpirun_agent.end_supervisors(mpirun_agent.read(tmp_path))
