"""The checks between machines: actors can reach their learner, and learners each other."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from impala_mm.runtime import certificates
from launcher.checks.finding import Finding
from launcher.node import mpirun, order_channel
from launcher.node.task import LEARNERS_VARIABLE, START_VARIABLE
from launcher.plan import process_plan
from launcher.plan.host_environment import Installation, InstallationOf
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker, first_learners
from launcher.remote import parallel
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import HostUnavailable, OperationFailed
from launcher.running import mpirun_daemons

_MAX_SENDERS = 4  # hosts that send at the same time: more would compete for the bandwidth
_SEND_SECONDS = 0.5
_ALL_REDUCE_SECONDS = 120.0
_MIN_MBIT_PER_SECOND = 100.0  # bandwidth below which parameters and unrolls may be delayed
_ALL_REDUCE_PROGRAM = """
import sys, tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
total = float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))
expected = hvd.size() * (hvd.size() + 1) / 2
sys.exit(0 if total == expected else f"the all-reduce returned {total}, not {expected}")
"""


class NetworkChecks:
    """The checks between the machines of one run."""

    def __init__(
        self,
        hosts: Hosts,
        workers: Sequence[Worker],
        installation_of: InstallationOf,
        config: LauncherConfig,
        make_certificates: Callable[[Sequence[str]], str],
        bind_address: str = "",
    ):
        """Check a planned run; `bind_address` is that of --bind_address, if given."""
        self._bind_host = bind_address.rpartition(":")[0].strip("[]")
        self._hosts, self._installation_of, self._config = hosts, installation_of, config
        self._make_certificates = make_certificates  # for roles, as `Request` describes it
        self._learners = [worker for worker in workers if worker.job == "learner"]
        self._actors = [worker for worker in workers if worker.job == "actor"]

    def check(self) -> list[Finding]:
        """Run all checks between machines; a run on a single machine has none."""
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
        """Check the learners' host names: unique, and not a loopback address on their own host.

        Without --bind_address, a learner listens on the address that its own host resolves its name
        to. Debian writes a loopback address for it to /etc/hosts, where no other host could
        connect.
        """
        findings = self._check_unique_names()
        if self._bind_host:
            return findings
        for learner in self._learners:
            address, host_id = (
                self._installation_of(learner).address,
                self._installation_of(learner).host_id,
            )
            addresses = self._hosts.call(host_id, "resolve", host=address)
            if addresses and all(each.startswith("127.") for each in addresses):
                loopback = addresses[0]
                message = (
                    f"row {learner.line}: {address} resolves to {loopback} on the host itself, "
                    f"so no other host could reach the learner"
                )
                remedy = (
                    "write its IP address in the CSV, correct /etc/hosts on that host, or listen "
                    "with --bind_address=0.0.0.0:0"
                )
                findings.append(Finding("names", False, message, remedy, host_id))
        return findings

    def _check_unique_names(self) -> list[Finding]:
        """Check that host names differ: Open MPI takes equal names for one machine and hangs."""
        named: dict[str, str] = {}
        findings = []
        for host_id in dict.fromkeys(
            self._installation_of(learner).host_id for learner in self._learners
        ):
            name = self._hosts.call(host_id, "facts", roots=[], pythons=[])["host"]
            if (other := named.setdefault(name, host_id)) != host_id:
                message = f"{host_id or 'this machine'} and {other or 'this machine'} both have "
                message += f"the host name {name}: Open MPI would take them for one machine"
                findings.append(Finding("names", False, message, "rename one of the hosts"))
        return findings

    def _check_bandwidth(self) -> list[Finding]:
        """Measure the bandwidth from each actor's host to the port of one of its learners.

        The host only connects to the others, since a measurement fills the network for a while.
        For a learner that chooses its port itself, a port is used that is free now.
        """
        wanted: dict[str, dict[int, None]] = {}  # numbers of learners, by host id of their actors
        for actor, number in first_learners([*self._learners, *self._actors]):
            host_id = self._installation_of(actor).host_id
            if host_id != self._installation_of(self._learners[number]).host_id:
                wanted.setdefault(host_id, {})[number] = None
        ports, findings = self._start_servers(sorted(set().union(*wanted.values())))
        to_measure: list[tuple[str, int]] = []
        to_connect: list[tuple[str, int]] = []
        for i, (host_id, numbers) in enumerate(wanted.items()):
            if pairs := [(host_id, number) for number in numbers if number in ports]:
                to_measure.append(pairs.pop(i % len(pairs)))  # in turn, so that all are measured
                to_connect += pairs

        def send(pair: tuple[str, int], seconds: float = 0.0) -> Finding:
            return self._send(pair[0], self._learners[pair[1]], ports[pair[1]], seconds)

        findings += parallel.map_ordered(send, to_connect)
        findings += parallel.map_ordered(
            lambda pair: send(pair, _SEND_SECONDS), to_measure, _MAX_SENDERS
        )
        for host_id in {self._installation_of(self._learners[number]).host_id for number in ports}:
            with contextlib.suppress(HostUnavailable, OperationFailed):
                self._hosts.call(host_id, "stop_bandwidth_servers")
        return list(dict.fromkeys(findings))

    def _start_servers(self, numbers: Sequence[int]) -> tuple[dict[int, int], list[Finding]]:
        """Start a server for each of these learners; return their ports, and the failures.

        A port that a row names comes first, so that no other learner's server takes it.
        """
        ports, findings = {}, []
        for number in sorted(numbers, key=lambda number: not self._learners[number].tf_port):
            learner = self._learners[number]
            installation = self._installation_of(learner)
            address, host_id = self._bind_host or installation.address, installation.host_id
            try:
                ports[number] = self._hosts.call(
                    host_id, "start_bandwidth_server", address=address, port=learner.tf_port
                )
            except (HostUnavailable, OperationFailed, OSError) as error:
                message = f"cannot listen on {address}:{learner.tf_port}: {error}"
                findings.append(Finding("network", False, message, "", host_id))
        return ports, findings

    def _send(self, host_id: str, learner: Worker, port: int, seconds: float) -> Finding:
        """Measure the bandwidth to a learner's port for `seconds`; 0: only connect to it."""
        address = self._installation_of(learner).address
        try:
            rate = self._hosts.call(
                host_id, "measure_bandwidth", host=address, port=port, seconds=seconds
            )
        except (HostUnavailable, OperationFailed, OSError) as error:
            message = f"cannot reach its learner at {address}:{port}: {error}"
            remedy = "open that port in the firewalls between them"
            if not learner.tf_port:
                remedy += ", or name an open one in the column tf_port"
            return Finding("network", False, message, remedy, host_id)
        if not seconds:
            return Finding("network", True, f"can connect to {address}:{port}", "", host_id)
        is_slow = rate < _MIN_MBIT_PER_SECOND
        message = f"{rate:,.0f} Mbit/s to {address}:{port}"
        if is_slow:
            message += ", which may delay parameters and unrolls"
        remedy = "raise --min_pull_secs, or use a faster network" if is_slow else ""
        return Finding("network", None if is_slow else True, message, remedy, host_id)

    def _check_all_reduce(self) -> list[Finding]:
        """Run an all-reduce between the learners' hosts, by the mpirun that the run will use."""
        others = process_plan.other_installations(self._learners, self._installation_of)
        if not others:
            return []
        first = self._installation_of(self._learners[0])
        environment = process_plan.common_environment(self._config)
        command = process_plan.mpirun_command(
            *(self._learners, self._config, self._installation_of, list(environment), "AGENT"),
            lambda installation: [installation.python, "-c", _ALL_REDUCE_PROGRAM],
        )
        credentials = self._make_certificates(order_channel.ROLES)
        parts = certificates.by_role(credentials, order_channel.ROLES)
        host_ids = list(dict.fromkeys(each.host_id for each in others))
        try:
            code, output = self._hosts.call(
                *(first.host_id, "run_mpirun"),
                command=process_plan.with_setup(self._learners[0], self._config, command),
                credentials=parts[order_channel.MPIRUN],
                supervisors=self._start_trial_supervisors(others, credentials),
                environment=environment
                | mpirun.environment(first.as_root)
                | {LEARNERS_VARIABLE: "check", START_VARIABLE: "check"},
                workdir=first.workdir,
                seconds=_ALL_REDUCE_SECONDS,
                timeout=_ALL_REDUCE_SECONDS + 10,
            )
        except (HostUnavailable, OperationFailed, OSError) as error:
            code, output = 1, str(error)
        finally:
            for host_id in host_ids:
                with contextlib.suppress(HostUnavailable, OperationFailed):
                    self._hosts.call(host_id, "end_trial_supervisors")
        hosts = len(self._learners)
        if code == 0:
            return [Finding("all-reduce", True, f"works between {hosts} learners")]
        last = [line for line in output.splitlines() if line.strip()][-6:] or ["no output"]
        message = f"mpirun between {hosts} learners failed (exit code {code}):\n" + "\n".join(last)
        remedy = "open the firewalls between learners; with several networks, name one by "
        remedy += "--mpirun_args"
        return [Finding("all-reduce", False, message, remedy)]

    def _start_trial_supervisors(
        self, others: Sequence[Installation], credentials: str
    ) -> dict[str, dict[str, Any]]:
        """Start a supervisor of mpirun's daemon on each host; return where they listen."""
        found: dict[str, dict[str, Any]] = {}
        for each in others:
            if each.address not in found:
                task = mpirun_daemons.make_task(each, credentials, self._config, "check")
                found[each.address] = self._hosts.call(
                    each.host_id, "start_trial_supervisor", task=task
                )
        return found
