"""An all-localhost run opens nothing to the network: all listening sockets of its processes."""

import ipaddress
import os
import sys
from pathlib import Path

import pytest
from processes import EXPERIMENT, Process, free_port, needs_horovod

from launcher.supervise.json_files import read_json
from launcher.supervise.procfs import descendants

pytestmark = [pytest.mark.slow, needs_horovod]
_LISTENS, _UDP = "0A", "07"  # the state of a socket in /proc/net


def _bound(pids):
    """Return [(program, address)] of the sockets of these processes to which others can send."""
    owners = {}
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            link = os.readlink(entry) if entry.is_symlink() else ""
            if link.startswith("socket:["):
                owners[link[8:-1]] = Path(f"/proc/{pid}/comm").read_text().strip()
    found = []
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in owners and fields[3] == (_LISTENS if "tcp" in protocol else _UDP):
                found.append((owners[fields[9]], _address(fields[1].partition(":")[0])))
    return found


def _address(written):
    """Return the address that /proc/net writes as words of 32 bits in this machine's order."""
    words = [bytes.fromhex(written[i : i + 8]) for i in range(0, len(written), 8)]
    found = ipaddress.ip_address(
        b"".join(w[::-1] if sys.byteorder == "little" else w for w in words)
    )
    return getattr(found, "ipv4_mapped", None) or found


def _check(pids):
    bound = _bound(pids)
    of_mpirun = [each for each in bound if each[0].startswith("prte")]
    assert of_mpirun
    assert len(bound) - len(of_mpirun) == 2, "the learners'"
    assert [each for each in bound if not each[1].is_loopback] == []


def test_of_experiment_py(tmp_path):
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    run = Process(
        *(*EXPERIMENT, "--level_name=catch", "--num_learners=2", f"--logdir={tmp_path}"),
        *("--num_actors=2", f"--learner_hosts={hosts}", "--stop_at_return=2"),
    )
    run.until(r"[1-9][\d,]* frames \|", 120)
    assert "listens on all network interfaces" not in run.printed()
    _check([run.process.pid, *descendants(run.process.pid)])
    run.interrupt()


def test_of_a_frontend(cluster):
    python = sys.executable
    rows = [f"learner,localhost,,{python}"] * 2 + [f"actor,localhost,,{python}"] * 2
    frontend = cluster.start(cluster.csv(*rows), "--level_name=catch", "--stop_at_return=2")
    frontend.until(r"[1-9][\d,]* frames \|", 120)
    states = [read_json(path) for path in cluster.state.glob("*/state.json")]
    supervisors = [state["supervisor"][0] for state in states]
    assert len(supervisors) == 3
    pids = [pid for each in supervisors for pid in (each, *descendants(each))]
    _check([frontend.process.pid, *pids])
    frontend.interrupt()
