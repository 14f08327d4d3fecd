"""The checks between machines: actors reach their learner, and learners each other."""

import contextlib
from collections.abc import Sequence

from launcher.checks.finding import Finding
from launcher.node import mpirun
from launcher.node.task import LEARNERS_VARIABLE
from launcher.plan import process_plan
from launcher.plan.host_environment import InstallationOf
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import ANY_LEARNER, Worker
from launcher.remote import parallel
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.running import start

_MAX_SENDERS = 4  # hosts that send at the same time, or they would measure each other
_SEND_SECONDS = 0.5
_ALL_REDUCE_SECONDS = 120.0
# Below it weights and unrolls of an actor's host may be held up.
_MIN_MBIT_PER_SECOND = 100.0
_ALL_REDUCE_PROGRAM = """
import sys, tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
total = float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))
sys.exit(0 if total == hvd.size() * (hvd.size() + 1) / 2 else f"it gave {total}")
"""


class NetworkChecks:
    """The checks between the machines of one run."""

    def __init__(
        self,
        hosts: Hosts,
        workers: Sequence[Worker],
        installation_of: InstallationOf,
        config: LauncherConfig,
    ):
        self._hosts, self._installation_of, self._config = hosts, installation_of, config
        self._learners = [worker for worker in workers if worker.job == "learner"]
        self._actors = [worker for worker in workers if worker.job == "actor"]

    def check(self) -> list[Finding]:
        """Nothing where all is on one machine."""
        if (
            len(
                {
                    self._installation_of(worker).host_id
                    for worker in (*self._learners, *self._actors)
                }
            )
            == 1
        ):
            return []
        if wrong := self._check_names():
            return wrong
        return [*self._check_bandwidth(), *self._check_all_reduce()]

    def _check_names(self) -> list[Finding]:
        """A learner listens at its name as its own host knows it: not on the loopback, as Debian
        has it in /etc/hosts."""
        findings = self._check_unique_names()
        for learner in self._learners:
            address, host_id = (
                self._installation_of(learner).address,
                self._installation_of(learner).host_id,
            )
            addresses = self._hosts.call(host_id, "resolve", host=address)
            if addresses and all(each.startswith("127.") for each in addresses):
                loopback = addresses[0]
                message = (
                    f"row {learner.line}: {address} is {loopback} to itself: nobody reaches that"
                )
                remedy = "write its address in the CSV, or mend its /etc/hosts"
                findings.append(Finding("names", False, message, remedy, host_id))
        return findings

    def _check_unique_names(self) -> list[Finding]:
        """Open MPI takes hosts of one name for one machine, and hangs."""
        named: dict[str, str] = {}
        findings = []
        for host_id in dict.fromkeys(
            self._installation_of(learner).host_id for learner in self._learners
        ):
            name = self._hosts.call(host_id, "facts", roots=[], pythons=[])["host"]
            if (other := named.setdefault(name, host_id)) != host_id:
                message = f"{host_id or 'this machine'} and {other or 'this machine'} both call "
                message += f"themselves {name}: Open MPI would take them for one machine"
                findings.append(Finding("names", False, message, "give one another host name"))
        return findings

    def _check_bandwidth(self) -> list[Finding]:
        """Each actor's host sends to the port of its learner for a moment."""
        pairs: dict[tuple[str, str, int], str] = {}
        actors = [row for row in self._actors for _ in range(row.count)]
        for i, actor in enumerate(actors):
            number = i % len(self._learners) if actor.learner == ANY_LEARNER else actor.learner
            learner = self._learners[number]
            to, host_id = self._installation_of(learner), self._installation_of(actor).host_id
            if host_id != to.host_id:
                pairs[host_id, to.address, learner.tf_port] = to.host_id
        listening, findings = self._start_servers(pairs)
        findings += parallel.map_ordered(lambda pair: self._measure(*pair), listening, _MAX_SENDERS)
        for host_id in set(pairs.values()):
            with contextlib.suppress(HostUnavailable, OperationFailed):
                self._hosts.call(host_id, "stop_bandwidth_servers")
        return findings

    def _start_servers(
        self, pairs: dict[tuple[str, str, int], str]
    ) -> tuple[list[tuple[str, str, int]], list[Finding]]:
        """Pairs whose learner's host listens now; and why the others do not."""
        errors = {}
        for (_, address, port), host_id in pairs.items():
            if (address, port) not in errors:
                try:
                    self._hosts.call(host_id, "start_bandwidth_server", address=address, port=port)
                    errors[address, port] = ""
                except (HostUnavailable, OperationFailed, OSError) as error:
                    errors[address, port] = str(error)
        bad = [
            Finding("reach", False, f"cannot listen on {address}:{port}: {why}", "", pairs_place)
            for (_, address, port), pairs_place in pairs.items()
            if (why := errors[address, port])
        ]
        return [pair for pair in pairs if not errors[pair[1:]]], list(dict.fromkeys(bad))

    def _measure(self, host_id: str, address: str, port: int) -> Finding:
        try:
            rate = self._hosts.call(
                host_id, "measure_bandwidth", host=address, port=port, seconds=_SEND_SECONDS
            )
        except (HostUnavailable, OperationFailed, OSError) as error:
            message = f"cannot reach its learner at {address}:{port}: {error}"
            return Finding(
                "reach", False, message, "open that port in the firewall between", host_id
            )
        remedy = "raise --min_pull_secs, or move it nearer" if rate < _MIN_MBIT_PER_SECOND else ""
        message = f"{rate:,.0f} Mbit/s to {address}:{port}"
        return Finding("reach", None if remedy else True, message, remedy, host_id)

    def _check_all_reduce(self) -> list[Finding]:
        """By the same mpirun and agent that the learners will have."""
        others = process_plan.other_installations(self._learners, self._installation_of)
        if not others:
            return []
        first = self._installation_of(self._learners[0])
        environment = process_plan.common_environment(self._config)
        command = process_plan.mpirun_command(
            *(self._learners, self._config, self._installation_of, list(environment), "AGENT"),
            lambda installation: [installation.python, "-c", _ALL_REDUCE_PROGRAM],
        )
        code, output = self._hosts.call(
            *(first.host_id, "run_mpirun"),
            command=process_plan.with_setup(self._learners[0], self._config, command),
            agent=start.mpirun_agent_command(first),
            credentials=start.mpirun_credentials(self._hosts, first, others, "check"),
            environment=environment
            | mpirun.environment(first.as_root)
            | {LEARNERS_VARIABLE: "check"},
            workdir=first.workdir,
            seconds=_ALL_REDUCE_SECONDS,
            timeout=_ALL_REDUCE_SECONDS + 10,
        )
        hosts = len(self._learners)
        if code == 0:
            return [Finding("all-reduce", True, f"works between {hosts} learners")]
        last = [line for line in output.splitlines() if line.strip()][-6:] or ["it said nothing"]
        remedy = "see --mpirun_args: hosts with several networks, firewalls"
        return [Finding("all-reduce", False, "\n".join(last), remedy)]
