"""The processes of a run, made from the rows of a CSV: names, commands and environments.

Nothing is started here; `--dry_run` prints the result. All learners together are one process, their
mpirun; a single learner runs without mpirun. On each other learners' host one more process runs
mpirun's daemon (`mpi_host`).
"""

import dataclasses
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from launcher.plan.host_environment import Installation, InstallationOf
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import ANY_LEARNER, Worker
from launcher.supervise import mpirun
from launcher.supervise.errors import LauncherError
from launcher.supervise.mpi_agent import FIRST_PORT, TOKEN_VARIABLE
from launcher.supervise.programs import PACKAGE
from launcher.supervise.task import ACTORS_VARIABLE, LEARNERS, PORTS_VARIABLE, START_VARIABLE

# In seconds; with these values ranks end within a minute if their mpirun's host loses power.
_TCP_KEEPALIVE = {"time": "30", "intvl": "10", "probes": "3"}
# Where mpirun's agents wait for other learners' hosts, one port for each, if all are free.
_USUAL_PORTS = range(FIRST_PORT, FIRST_PORT + 1000)


class PlanError(LauncherError):
    """An error: a process cannot be started as requested; its message says why."""


@dataclasses.dataclass(frozen=True)
class Process:
    """A process, with the command that a user would type on its host."""

    name: str
    job: str
    worker: Worker  # its row; for the learners the first learner's row
    installation: Installation  # on the machine of that row
    command: list[str]
    environment: dict[str, str]  # in addition to the user's own variables
    workdir: str
    logdir: str  # the run's folder on its machine
    port: int = 0  # of another learners' host: where it finds mpirun's agent on the first one

    def shell_line(self, from_shell: Collection[str] = ()) -> str:
        """Return the environment and command as a line of shell; secrets are masked.

        `from_shell`: variables whose values the user's shell has.
        """
        variables = [
            f'{name}="${name}"' if name in from_shell else f"{name}={_masked(name, value)}"
            for name, value in self.environment.items()
        ]
        return " ".join([*variables, shlex.join(self.command)])


def row_signature(row: Worker) -> dict[str, str | int]:
    """Return the columns that are equal in two rows with interchangeable processes."""
    names = ("ip", "cuda_visible_devices", "num_envs", "workdir", "python", "setup", "learner")
    return {name: getattr(row, name) for name in ("job", *names)}


def make_processes(
    workers: Sequence[Worker],
    config: LauncherConfig,
    flags: dict[str, str],
    installation_of: InstallationOf,
    ports: Sequence[int] = _USUAL_PORTS,
    launcher: Installation | None = None,
) -> list[Process]:
    """Return all processes: the learners, then actors and evaluators in the order of their rows.

    `flags`: the user's flags, by name; `ports`: see `_USUAL_PORTS`; `launcher`: see
    `make_learners`.
    """
    learners = [worker for worker in workers if worker.job == "learner"]
    common_flags = join_common_flags(workers, flags, installation_of)
    actors = [w for w in workers if w.job == "actor" for _ in range(w.count)]
    variables = common_environment(config) | {ACTORS_VARIABLE: str(len(actors))}
    own_flags = common_flags | {"job_name": "learner"}
    processes = make_learners(
        learners,
        config,
        own_flags,
        variables,
        installation_of,
        lambda installation: _experiment_command(installation, own_flags),
        ports,
        launcher,
    )
    processes += [
        make_process(f"actor-{task}", worker, config, common_flags, installation_of)
        for task, worker in enumerate(actors)
    ]
    evaluators = [worker for worker in workers if worker.job == "evaluator"]
    for number, worker in enumerate(evaluators):
        name = "evaluator" if len(evaluators) == 1 else f"evaluator-{number}"
        processes.append(make_process(name, worker, config, common_flags, installation_of))
    return processes


def make_process(
    name: str,
    worker: Worker,
    config: LauncherConfig,
    common_flags: dict[str, str],
    installation_of: InstallationOf,
    port: int = 0,
) -> Process:
    """Return a process of that name, but not mpirun; `port`: that of another learners' host.

    `common_flags` come from `join_common_flags`; the number in an actor's name is its --task.
    """
    if worker.job == "learner":
        return _make_learners_host(name, worker, common_flags, installation_of(worker), port)
    own = {"job_name": worker.job}
    if worker.job == "actor":
        own |= {"task": name.removeprefix("actor-")} | row_flags(worker)
    variables = common_environment(config)
    return _make_single(
        name, worker, config, common_flags | own, variables, installation_of(worker)
    )


def join_common_flags(
    workers: Sequence[Worker], flags: dict[str, str], installation_of: InstallationOf
) -> dict[str, str]:
    """Return the flags of every process: the user's flags and the learners' addresses.

    The port of a learner that chooses it itself is 0.
    """
    learners = [worker for worker in workers if worker.job == "learner"]
    host_ids = {installation_of(worker).host_id for worker in workers}
    addresses = []
    for worker in learners:
        address = installation_of(worker).address
        if len(host_ids) > 1 and (address == "localhost" or address.startswith("127.")):
            raise PlanError(
                f"row {worker.line}: hosts of other rows cannot reach a learner at {address}: "
                f"use the name or address by which they reach this machine"
            )
        addresses.append(f"{address}:{worker.tf_port}")
    return flags | {"learner_hosts": ",".join(addresses)}


def chooses_port(addresses: str) -> bool:
    """Return whether a learner of these addresses, in --learner_hosts, chooses its port itself."""
    return any(address.endswith(":0") for address in addresses.split(","))


def known_addresses(addresses: str, reported: str) -> str:
    """Return addresses with the ports that learners of the same hosts have reported, instead of 0.

    Both are lists in the format of --learner_hosts.
    """
    found = addresses.split(",")
    left = [address for address in reported.split(",") if address not in found]
    for i, address in enumerate(found):
        host, _, port = address.rpartition(":")
        alike = [each for each in left if each.rpartition(":")[0] == host]
        if port == "0" and alike:
            found[i] = alike[0]
            left.remove(alike[0])
    return ",".join(found)


def row_flags(worker: Worker) -> dict[str, str]:
    """Return the flags that an actor's row sets."""
    own = {}
    if worker.num_envs:
        own["num_envs"] = str(worker.num_envs)
    if worker.learner != ANY_LEARNER:
        own["learner"] = str(worker.learner)
    return own


def make_learners(
    learners: Sequence[Worker],
    config: LauncherConfig,
    flags: dict[str, str],
    environment: dict[str, str],
    installation_of: InstallationOf,
    make_command: Callable[[Installation], list[str]],
    ports: Sequence[int] = _USUAL_PORTS,
    launcher: Installation | None = None,
) -> list[Process]:
    """Return the process of all learners, and one for each other host that has learners.

    `make_command` returns the command of a learner; `launcher`: where mpirun runs, if that is not
    the first learner's host.
    """
    first, installation = learners[0], launcher or installation_of(learners[0])
    if len(learners) == 1 and not launcher:
        return [_make_single(LEARNERS, first, config, flags, environment, installation)]
    others: dict[str, Worker] = {}  # the first row of each other host
    for worker in learners:
        if (host_id := installation_of(worker).host_id) != installation.host_id:
            others.setdefault(host_id, worker)
    hosts = [
        _make_learners_host(
            f"learners-{i}", worker, flags, installation_of(worker), ports[i - 1], launcher
        )
        for i, worker in enumerate(others.values(), 1)
    ]
    variables = environment | mpirun.environment(installation.as_root)
    command = with_setup(
        first,
        config,
        _mpirun_command(
            learners, config, installation, bool(hosts), installation_of, environment, make_command
        ),
    )
    if hosts:
        own = {each.installation.address: [installation.address, each.port] for each in hosts}
        variables[PORTS_VARIABLE] = json.dumps(own)
        variables[TOKEN_VARIABLE] = _token_file(installation)
    learner = Process(
        LEARNERS,
        "learner",
        first,
        installation,
        command,
        variables,
        installation.workdir,
        flags["logdir"],
    )
    return [learner, *hosts]


def _make_learners_host(
    name: str,
    worker: Worker,
    flags: dict[str, str],
    installation: Installation,
    port: int,
    launcher: Installation | None = None,
) -> Process:
    """Return the process that runs mpirun's daemon on another learners' host."""
    address = flags["learner_hosts"].split(",")[0].rpartition(":")[0].strip("[]")
    address = launcher.address if launcher else address
    return Process(
        name,
        "learner",
        worker,
        installation,
        [PACKAGE, "mpi_host", address, mpi_prefix(installation), str(port)],
        {TOKEN_VARIABLE: _token_file(installation)},
        installation.workdir,
        flags["logdir"],
        port,
    )


def make_single_learners(
    learners: Sequence[Worker], config: LauncherConfig, installation_of: InstallationOf
) -> list[Process]:
    """Return a process for each learner, as if it were the only one."""
    environment = common_environment(config)
    return [
        _make_single(LEARNERS, w, config, {"logdir": ""}, environment, installation_of(w))
        for w in learners
    ]


def count_other_hosts(learners: Sequence[Worker], installation_of: InstallationOf) -> int:
    """Return the number of hosts that have learners, besides that of the first learner."""
    return len({installation_of(worker).host_id for worker in learners}) - 1


def _mpirun_command(
    learners: Sequence[Worker],
    config: LauncherConfig,
    first: Installation,
    has_others: bool,
    installation_of: InstallationOf,
    variable_names: Iterable[str],
    make_command: Callable[[Installation], list[str]],
) -> list[str]:
    """Return an mpirun command with one rank for each learner.

    `first`: where it runs; `variable_names`: variables of mpirun's environment that the ranks
    receive.
    """
    parts = [first.mpirun, *mpirun.OPTIONS]
    if has_others:
        # Only this machine can have daemons started on other hosts.
        parts += ["--prtemca", "plm_ssh_no_tree_spawn", "1"]
        for name, value in _TCP_KEEPALIVE.items():
            parts += ["--prtemca", f"oob_tcp_keepalive_{name}", value]
        parts += ["--prefix", mpi_prefix(first)] if mpi_prefix(first) else []
    parts += split_arguments(config.mpirun_args)
    for i, worker in enumerate(learners):
        own = installation_of(worker)
        # Variables are passed by name: a value may be secret, and `ps` shows commands.
        names = [*variable_names, *[START_VARIABLE] * has_others]
        if worker.cuda_visible_devices:
            names.append(f"CUDA_VISIBLE_DEVICES={worker.cuda_visible_devices}")
        parts += [":"] * (i > 0) + ["-np", "1"]
        parts += [part for each in names for part in ("-x", each)]
        if has_others:
            parts += ["--host", own.address, "--wdir", own.workdir]
        parts += with_setup(worker, config, make_command(own))
    return parts


def mpi_prefix(installation: Installation) -> str:
    """Return the folder of Open MPI; empty if it is the system's."""
    return str(Path(installation.mpirun).parent.parent) if "/" in installation.mpirun else ""


def _make_single(
    name: str,
    worker: Worker,
    config: LauncherConfig,
    flags: dict[str, str],
    environment: dict[str, str],
    installation: Installation,
) -> Process:
    variables = dict(environment)
    if worker.cuda_visible_devices:
        variables["CUDA_VISIBLE_DEVICES"] = worker.cuda_visible_devices
    command = with_setup(worker, config, _experiment_command(installation, flags))
    return Process(
        name,
        worker.job,
        worker,
        installation,
        command,
        variables,
        installation.workdir,
        flags["logdir"],
    )


def _experiment_command(installation: Installation, flags: dict[str, str]) -> list[str]:
    own = {"token_file": _token_file(installation)}
    return [installation.python, installation.experiment, *flag_arguments(flags | own)]


def _token_file(installation: Installation) -> str:
    return f"{installation.folder}/token"


def _masked(name: str, value: str) -> str:
    return "***" if is_secret(name, value) else shlex.quote(value)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable is secret, by its name or by a password in a URL."""
    by_name = re.search(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", name, re.IGNORECASE)
    return bool(by_name or re.search(r"://[^/]*:[^/]*@", value))


def flag_arguments(flags: dict[str, str]) -> list[str]:
    """Return flags in the format of a command line."""
    return [f"--{name}={value}" for name, value in flags.items()]


def with_setup(worker: Worker, config: LauncherConfig, command: list[str]) -> list[str]:
    """Return a command that runs after the row's set-up commands.

    The shell replaces itself by the process, so that the process receives signals directly.
    """
    setup = worker.setup or config.setup
    if not setup:
        return command
    then = 'status=$?; [ $status = 0 ] || exit $status; exec "$@"'
    return ["bash", "-c", f"{setup}\n{then}", "set-up", *command]


def common_environment(config: LauncherConfig) -> dict[str, str]:
    """Return the variables of --env. Raises PlanError."""
    variables = {}
    for pair in config.env:
        name, equals, value = pair.partition("=")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise PlanError(
                f"--env={name if equals else '...'}: write NAME=value, or NAME for its value in "
                f"the shell that starts the frontend"
            )
        if not equals and name not in os.environ:
            raise PlanError(f"--env={name}: this shell has no such variable: `export {name}=value`")
        value = value if equals else os.environ[name]
        if "\n" in value:
            raise PlanError(
                f"--env={name}: its value contains a line break, which no process can get"
            )
        variables[name] = value
    return variables


def names_from_shell(config: LauncherConfig) -> list[str]:
    """Return the variables of --env whose values come from the frontend's own environment."""
    return [pair for pair in config.env if "=" not in pair]


def hidden_environment(config: LauncherConfig) -> dict[str, str]:
    """Return the variables of --env that no file of --emit shows: secrets, and those of a shell."""
    shell, variables = names_from_shell(config), common_environment(config)
    return {n: value for n, value in variables.items() if n in shell or is_secret(n, value)}


def split_arguments(arguments: str) -> list[str]:
    """Split --mpirun_args as a shell would. Raises PlanError."""
    try:
        return shlex.split(arguments)
    except ValueError as error:
        raise PlanError(f"--mpirun_args={arguments}: {error}") from None
