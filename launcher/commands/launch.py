"""Starts a run: connects to its hosts, checks them, starts all processes and follows the run."""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from impala_mm.config import user_sources
from impala_mm.records import run_folder
from impala_mm.runtime import run_token
from launcher.checks import preflight
from launcher.checks.check import PlannedRun
from launcher.follow import (
    connect,
    follow,
    names,
    start,
)
from launcher.follow.console import say
from launcher.follow.follow import Follower
from launcher.follow.followed_run import FollowedRun
from launcher.hosts import deploy, fetch
from launcher.hosts.hosts import Hosts, find_targets, host_id_of
from launcher.plan import host_environment, process_plan
from launcher.plan.host_environment import Installation
from launcher.plan.request import Request, UserError, check_flags, read_workers
from launcher.plan.workers_csv import Worker
from launcher.supervise import tmux
from launcher.supervise.run_registry import Run, check_runs_folder


def launch(run: Run, request: Request) -> int:
    """Start and follow a run, or print its commands with `--dry_run`; return the exit code.

    The name of `run` gets a number if it is taken and was not requested.
    """
    check_flags(request)
    workers = read_workers(request)
    config = request.launcher
    if config.dry_run:
        _print_commands(run, request, workers)
        return 0
    check_runs_folder()
    targets = find_targets(workers)
    is_requested = "tmux_sess" in request.given
    taken: dict[str, str] = {}  # names that are taken on other hosts, and why
    while True:
        with contextlib.ExitStack() as connections:
            folder = str(request.logdir) if request.experiment.logdir else ""
            with names.reserve(run.name, is_requested, folder, say, taken) as free_run:
                hosts = Hosts(free_run.name, targets, request.ssh_settings)
                followed = FollowedRun(
                    free_run, hosts, config, workers, request.experiment.log_max_mb
                )
                connections.callback(followed.disconnect)
                try:
                    unreached = _connect_hosts(followed, request)
                except names.NameTakenOnHost as error:
                    if is_requested:
                        raise UserError(str(error)) from None
                    taken[free_run.name] = str(error).partition(": --tmux_sess")[0]
                    continue
                first = _find_first_learner(followed, request, unreached)
                if config.check or not config.skip_check:
                    has_failed = _check(followed, request, first, unreached)
                    if config.check or has_failed:
                        return int(has_failed)
                elif first.host_id in unreached:
                    raise UserError(f"cannot reach the learners' host: {unreached[first.host_id]}")
                follower = _start(followed, request, first, len(unreached))
            leaves = config.detach and not follower.interrupted and free_run.is_running()
            if leaves and (code := follower.detach()) is not None:
                return code
            on_each = " on each host" if hosts.remote_nodes else ""
            windows = f"`tmux attach -t {free_run.name}`{on_each} shows the processes; "
            follower.tell(f"{windows * bool(tmux.default_socket())}{follow.KEYS_HINT}")
            return follower.follow()


def _connect_hosts(followed: FollowedRun, request: Request) -> dict[str, str]:
    """Connect to every host, and deploy to it; return unreachable hosts and why."""
    hosts, workers, config = followed.hosts, followed.workers, followed.config
    unreached = hosts.connect(say, connect.candidate_pythons(workers, config.deploy))
    followed.end_pending(say)
    names.refuse_taken_on_hosts(hosts, str(request.logdir))
    if config.deploy and deploy.deploy_project(
        hosts, workers, config, say, user_sources.of_run(request.experiment)
    ):
        raise UserError("no process was started: --deploy did not succeed on all hosts (see above)")
    return unreached


def _find_first_learner(
    followed: FollowedRun, request: Request, unreached: dict[str, str]
) -> Installation:
    """Return where the first learner will run; refuse a folder there that a run writes to."""
    followed.find_installations(followed.workers)
    first = followed.installation_of(next(w for w in followed.workers if w.job == "learner"))
    if request.experiment.logdir and first.host_id and first.host_id not in unreached:
        folder, name = _learners_logdir(request, first, request.logdir), followed.run.name
        writer = followed.hosts.call(first.host_id, "describe_writer", folder=folder, starting=name)
        names.refuse_folder_in_use(f"{first.host_id}:{folder}", writer)
    return first


def _check(
    followed: FollowedRun,
    request: Request,
    first: Installation,
    unreached: dict[str, str],
) -> bool:
    """Run the checks and return whether one failed.

    All results are printed with `--check`, otherwise only notes and failures.
    """
    started, config = time.monotonic(), followed.config
    workers, installation_of = followed.workers, followed.installation_of
    flags = request.flags | {"logdir": _learners_logdir(request, first, request.logdir)}
    found = preflight.check_run(
        PlannedRun(
            workers,
            process_plan.make_processes(workers, config, flags, installation_of),
            installation_of,
            followed.hosts,
            unreached,
            config,
            request.flags,
            request.logdir,
            request.experiment.batch_size if request.experiment.rounds else 0,
        )
    )
    passed, notes, failed = (sum(each.ok is ok for each in found) for ok in (True, None, False))
    if shown := found if config.check else [each for each in found if not each.ok]:
        preflight.show_findings(shown)
    rest = f", {notes} note{'s' * (notes > 1)}" * (notes > 0) + f", {failed} failed" * (failed > 0)
    seconds = time.monotonic() - started
    say(f"checks: {passed} of {len(found)} passed{rest} ({seconds:.1f} s)")
    if failed and not config.check:
        say(
            "no process was started: fix the failed checks, or start anyway with --skip_check "
            "(--check prints all results)"
        )
    return failed > 0


def _learners_logdir(request: Request, first: Installation, local_logdir: Path) -> str:
    """Return the path of the run's folder on the learners' machine."""
    if not first.host_id:
        return str(local_logdir)
    return first.absolute_path(request.experiment.logdir or f"runs/{local_logdir.name}")


def _start(
    followed: FollowedRun, request: Request, first: Installation, unreached: int
) -> Follower:
    """Start all processes, the actors once the learners' addresses are known."""
    run, hosts = followed.run, followed.hosts
    try:
        logdir = run_folder.make_folder(request.experiment).absolute()
    except OSError as error:
        raise UserError(f"--logdir={request.logdir}: {error.strerror}") from None
    learners = [worker for worker in followed.workers if worker.job == "learner"]
    # With --transport_security=none only the hosts of learners use them, for mpirun.
    needs_certificates = request.experiment.transport_security != "none" or (
        process_plan.count_other_hosts(learners, followed.installation_of) > 0
    )
    run.create_state(run_token.make(needs_certificates))
    learners_logdir = _learners_logdir(request, first, logdir)
    shared = connect.is_shared_folder(hosts, first.host_id, learners_logdir, logdir)
    if not shared and fetch.restore_if_missing(hosts, first.host_id, logdir, learners_logdir, say):
        say(
            f"copied the checkpoints in {logdir} to {first.host_id}:{learners_logdir}; "
            f"training resumes from the last one",
        )
    follower = Follower(followed, logdir, request.command)
    follower.install_signal_handlers()
    started = time.monotonic()
    flags = request.flags | {"logdir": learners_logdir}
    try:
        record, actors = start.start_run(followed, flags, logdir, shared)
        followed.watch_hosts()
        if actors and (addresses := follower.wait_for_learners()):
            record = start.start_actors(followed, record, actors, addresses)
    except Exception:  # whatever it was, none of what was started stays
        if started_record := run.record:
            followed.undo_start(started_record)
        raise
    reached = len(hosts.remote_nodes) - unreached
    on_hosts = f" on {reached} host{'s' * (reached != 1)}" if hosts.remote_nodes else ""
    processes = f"{len(record.processes)} process{'es' * (len(record.processes) != 1)}"
    follower.tell(
        f"{run.name}: started {processes}{on_hosts} in "
        f"{time.monotonic() - started:.1f} s; results: {logdir}"
    )
    return follower


def _print_commands(run: Run, request: Request, workers: Sequence[Worker]) -> None:
    """Print the command of each process, without a connection to any host."""

    def installation_of(worker: Worker) -> Installation:
        host_id = host_id_of(worker)
        if not host_id:
            return host_environment.local_installation(worker, str(run.folder))
        return host_environment.remote_installation(worker, host_id, worker.ip, {})

    config, flags = request.launcher, request.flags | {"logdir": str(request.logdir)}
    processes = process_plan.make_processes(workers, config, flags, installation_of)
    if any(
        part.startswith("--learner_hosts=") and process_plan.chooses_port(part)
        for part in processes[0].command
    ):
        say("# port 0: the learner takes a free port, which actors get instead of it once it has")
    for process in processes:
        say(f"# {process.name} on {process.worker.ip}, in {process.workdir}")
        say(process.shell_line(process_plan.names_from_shell(config)))
