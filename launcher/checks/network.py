"""The checks between machines: actors can reach their learner, and learners each other."""

import contextlib
from collections.abc import Iterable, Sequence

from impala_mm.runtime import certificates
from launcher.checks.check import Finding, PlannedRun, Scope, check, failed, note, passed
from launcher.hosts import parallel
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.plan import process_plan
from launcher.plan.process_plan import Process
from launcher.plan.workers_csv import Worker, first_learners
from launcher.supervise.mpi_agent import TOKEN_VARIABLE
from launcher.supervise.task import START_VARIABLE

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


@check("names", Scope.RUN)
def check_names(run: PlannedRun) -> Iterable[Finding]:
    """Check the learners' host names: unique, and not a loopback address on their own host.

    Open MPI takes hosts of equal names for one machine and hangs. Without --bind_address, a learner
    listens on the address that its own host resolves its name to. Debian writes a loopback address
    for it to /etc/hosts, where no other host could connect.
    """
    if not run.has_several_hosts:
        return
    host_ids: dict[str, str] = {}  # by the host's own name
    for host in run.reached_hosts:
        if not host.learners:
            continue
        name = host.facts["host"]
        if (other := host_ids.setdefault(name, host.host_id)) != host.host_id:
            message = f"{host.host_id or 'this machine'} and {other or 'this machine'} both have "
            message += f"the host name {name}: Open MPI would take them for one machine"
            yield failed(message, "rename one of the hosts")
        for learner in [] if run.bind_host else host.learners:
            address = learner.installation.address
            resolved = host.call("resolve", host=address)
            if resolved and all(each.startswith("127.") for each in resolved):
                yield failed(
                    f"row {learner.worker.line}: {address} resolves to {resolved[0]} on the host "
                    f"itself, so no other host could reach the learner",
                    "write its IP address in the CSV, correct /etc/hosts on that host, or listen "
                    "with --bind_address=0.0.0.0:0",
                )._replace(host_id=host.host_id)


@check("network", Scope.BETWEEN_HOSTS)
def check_bandwidth(run: PlannedRun) -> Iterable[Finding]:
    """Measure the bandwidth from each actor's host to the port of one of its learners.

    The host only connects to the others, since a measurement fills the network for a while.
    For a learner that chooses its port itself, a port is used that is free now.
    """
    numbers_of: dict[str, dict[int, None]] = {}  # numbers of learners, by host id of their actors
    for actor, number in first_learners(
        [worker for worker in run.workers if worker.job in ("learner", "actor")]
    ):
        host_id = run.installation_of(actor).host_id
        if host_id != run.installation_of(run.learners[number]).host_id:
            numbers_of.setdefault(host_id, {})[number] = None
    ports, findings = _start_servers(run, sorted(set().union(*numbers_of.values())))
    to_measure: list[tuple[str, int]] = []
    to_connect: list[tuple[str, int]] = []
    for i, (host_id, numbers) in enumerate(numbers_of.items()):
        if pairs := [(host_id, number) for number in numbers if number in ports]:
            to_measure.append(pairs.pop(i % len(pairs)))  # in turn, so that all are measured
            to_connect += pairs

    def send(pair: tuple[str, int], seconds: float = 0.0) -> Finding:
        host_id, number = pair
        finding = _send(run, host_id, run.learners[number], ports[number], seconds)
        return finding._replace(host_id=host_id)

    findings += parallel.map_ordered(send, to_connect)
    findings += parallel.map_ordered(
        lambda pair: send(pair, _SEND_SECONDS), to_measure, _MAX_SENDERS
    )
    for host_id in {run.installation_of(run.learners[number]).host_id for number in ports}:
        with contextlib.suppress(HostUnavailable, OperationFailed):  # it has ended them
            run.hosts.call(host_id, "stop_bandwidth_servers")
    return findings


def _start_servers(run: PlannedRun, numbers: Sequence[int]) -> tuple[dict[int, int], list[Finding]]:
    """Start a server for each of these learners; return their ports, and the failures.

    A port that a row names comes first, so that no other learner's server takes it.
    """
    ports, failures = {}, []
    for number in sorted(numbers, key=lambda number: not run.learners[number].tf_port):
        learner = run.learners[number]
        installation = run.installation_of(learner)
        address, host_id = run.bind_host.strip("[]") or installation.address, installation.host_id
        try:
            ports[number] = run.hosts.call(
                host_id, "start_bandwidth_server", address=address, port=learner.tf_port
            )
        except (HostUnavailable, OperationFailed, OSError) as error:
            message = f"cannot listen on {address}:{learner.tf_port}: {error}"
            failures.append(failed(message)._replace(host_id=host_id))
    return ports, failures


def _send(run: PlannedRun, host_id: str, learner: Worker, port: int, seconds: float) -> Finding:
    """Measure the bandwidth to a learner's port for `seconds`; 0: only connect to it."""
    address = run.installation_of(learner).address
    try:
        rate = run.hosts.call(
            host_id, "measure_bandwidth", host=address, port=port, seconds=seconds
        )
    except (HostUnavailable, OperationFailed, OSError) as error:
        remedy = "open that port in the firewalls between them"
        if not learner.tf_port:
            remedy += ", or name an open one in the column tf_port"
        return failed(f"cannot reach its learner at {address}:{port}: {error}", remedy)
    if not seconds:
        return passed(f"can connect to {address}:{port}")
    message = f"{rate:,.0f} Mbit/s to {address}:{port}"
    if rate >= _MIN_MBIT_PER_SECOND:
        return passed(message)
    return note(
        f"{message}, which may delay parameters and unrolls",
        "raise --min_pull_secs, or use a faster network",
    )


@check("all-reduce", Scope.BETWEEN_HOSTS)
def check_all_reduce(run: PlannedRun) -> Iterable[Finding]:
    """Run an all-reduce between the learners' hosts, by the mpirun that the run will use."""
    learners = run.learners
    count = process_plan.count_other_hosts(learners, run.installation_of)
    if not count:
        return
    first = run.installation_of(learners[0])
    try:
        ports = run.hosts.call(first.host_id, "free_ports", address=first.address, count=count)
        code, output = _run_on_all(
            run,
            process_plan.make_learners(
                learners,
                run.config,
                process_plan.join_common_flags(run.workers, {"logdir": ""}, run.installation_of),
                process_plan.common_environment(run.config),
                run.installation_of,
                lambda installation: [installation.python, "-c", _ALL_REDUCE_PROGRAM],
                ports,
            ),
        )
    except (HostUnavailable, OperationFailed, OSError) as error:
        code, output = 1, str(error)
    if code == 0:
        yield passed(f"works between {len(learners)} learners")
        return
    last = [line for line in output.splitlines() if line.strip()][-6:] or ["no output"]
    yield failed(
        f"mpirun between {len(learners)} learners failed (exit code {code}):\n" + "\n".join(last),
        "open the firewalls between learners; with several networks, name one by --mpirun_args",
    )


def _run_on_all(run: PlannedRun, processes: Sequence[Process]) -> tuple[int, str]:
    """Run an mpirun and the processes on its other hosts; return its exit code and output."""
    token = certificates.make()

    def run_on(process: Process) -> tuple[int, str]:
        found: tuple[int, str] = run.hosts[process.installation.host_id].run_program(
            process.command,
            workdir=process.workdir,
            environment=process.environment | {TOKEN_VARIABLE: token, START_VARIABLE: "check"},
            seconds=_ALL_REDUCE_SECONDS,
        )
        return found

    learners, *others = processes
    parallel.start_calls(run_on, others, len(others))  # all at once, since they wait for each other
    try:
        return run_on(learners)
    finally:  # those of the others would wait for another mpirun
        for process in others:
            with contextlib.suppress(HostUnavailable, OperationFailed):  # it has ended them
                run.hosts.call(process.installation.host_id, "kill_programs")
