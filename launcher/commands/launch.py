"""Starts a run: connects to its hosts, checks them, starts all processes and follows the run."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from launcher.checks import preflight
from launcher.checks.check import Finding, PlannedRun
from launcher.commands.control import leave_controller
from launcher.follow import (
    connect,
    follow,
    mpirun_daemons,
    names,
    remembered,
    start,
)
from launcher.follow.console import say
from launcher.follow.followed_run import FollowedRun
from launcher.follow.recovery import Recovery
from launcher.follow.run_control import RunControl
from launcher.hosts import deploy, fetch
from launcher.hosts.hosts import Hosts, find_targets, host_id_of
from launcher.hosts.mirror import mirror_folder
from launcher.plan import host_environment, process_plan
from launcher.plan.host_environment import Installation, InstallationOf
from launcher.plan.process_plan import Process
from launcher.plan.request import Request, UserError, read_workers, refuse_launcher_flags
from launcher.plan.workers_csv import Worker
from launcher.supervise import order_channel
from launcher.supervise.run_registry import Run, check_runs_folder


def launch(run: Run, request: Request) -> int:
    """Start and follow a run, or print its commands with `--dry_run`; return the exit code.

    The name of `run` gets a number if it is taken and was not requested.
    """
    refuse_launcher_flags(request)
    workers = read_workers(request)
    expected_logdir = Path(request.logdir or "runs/NEW").absolute()
    config = request.launcher
    if config.dry_run:
        _print_commands(
            process_plan.make_processes(
                workers,
                config,
                request.flags | {"logdir": str(expected_logdir)},
                _default_installations(run),
            ),
            process_plan.names_from_shell(config),
        )
        return 0
    if config.wheelhouse and not config.deploy:
        raise UserError(
            "--wheelhouse needs --deploy, which installs its packages on the hosts: add --deploy"
        )
    check_runs_folder()
    targets = find_targets(workers)
    is_requested = "tmux_sess" in request.given
    taken: dict[str, str] = {}  # names that are taken on other hosts, and why
    while True:
        with contextlib.ExitStack() as connections:
            logdir = str(expected_logdir) if request.logdir else ""
            with names.reserve(run.name, is_requested, logdir, say, taken) as free_run:
                hosts = Hosts(free_run.name, targets, request.settings)
                connections.callback(connect.disconnect, free_run, hosts)
                launcher = _Launcher(free_run, request, workers, hosts, expected_logdir)
                try:
                    follow_run = launcher.launch()
                except names.NameTakenOnHost as error:
                    if is_requested:
                        raise UserError(str(error)) from None
                    taken[free_run.name] = str(error)
                    continue
            return follow_run()


class _Launcher:
    """Launches one run: connects, deploys, checks, starts and follows it."""

    def __init__(
        self,
        run: Run,
        request: Request,
        workers: list[Worker],
        hosts: Hosts,
        expected_logdir: Path,
    ):
        """Remember the request; `expected_logdir` is the run's folder, if its name is known yet."""
        self._run, self._request, self._config = run, request, request.launcher
        self._workers, self._hosts, self._expected_logdir = workers, hosts, expected_logdir
        self._control = RunControl(run, hosts)

    def launch(self) -> Callable[[], int]:
        """Launch the run, or only check it with `--check`.

        Return the function to call next, which follows the run and returns the exit code.
        """
        unreached = self._connect_hosts()
        installation_of = connect.find_installations(
            self._workers, self._hosts, self._config.deploy, say
        )
        first = installation_of(next(worker for worker in self._workers if worker.job == "learner"))
        if self._request.logdir and first.host_id and first.host_id not in unreached:
            folder = self._learners_logdir(first, self._expected_logdir)
            writer = self._hosts.call(
                first.host_id, "describe_writer", folder=folder, starting=self._run.name
            )
            names.refuse_folder_in_use(f"{first.host_id}:{folder}", writer)
        if self._config.check or not self._config.skip_check:
            found = self._check(installation_of, first, unreached)
            if self._config.check or preflight.has_failed(found):
                code = int(preflight.has_failed(found))
                return lambda: code
        elif first.host_id in unreached:
            raise UserError(f"cannot reach the learners' host: {unreached[first.host_id]}")
        else:
            self._refuse_missing_checkpoint(first)
        return self._start(installation_of, first, unreached)

    def _connect_hosts(self) -> dict[str, str]:
        """Connect to every host, and deploy to it; return unreachable hosts and why."""
        config = self._config
        unreached = self._hosts.connect(
            say, connect.candidate_pythons(self._workers, config.deploy)
        )
        self._control.end_pending(say)
        names.refuse_taken_on_hosts(self._hosts, str(self._expected_logdir))
        if config.deploy:
            sources = self._request.find_sources()
            if deploy.deploy_project(self._hosts, self._workers, config, say, sources):
                raise UserError(
                    "no process was started: --deploy did not succeed on all hosts (see above)"
                )
        return unreached

    def _check(
        self, installation_of: InstallationOf, first: Installation, unreached: dict[str, str]
    ) -> list[Finding]:
        """Run the checks; print all results with `--check`, else only notes and failures."""
        started, check_only = time.monotonic(), self._config.check
        flags = self._request.flags | {
            "logdir": self._learners_logdir(first, self._expected_logdir)
        }
        found = preflight.check_run(
            PlannedRun(
                self._workers,
                process_plan.make_processes(self._workers, self._config, flags, installation_of),
                installation_of,
                self._hosts,
                unreached,
                self._config,
                self._request.flags,
                logdir=self._expected_logdir,
                check_free=self._request.check_free,
                make_certificates=self._request.make_certificates,
                round_columns=self._request.round_columns,
            )
        )
        counts = [sum(finding.ok is ok for finding in found) for ok in (True, None, False)]
        passed, notes, failed = counts
        rest = f", {notes} note{'s' * (notes > 1)}" * (notes > 0) + f", {failed} failed" * (
            failed > 0
        )
        if shown := found if check_only else [each for each in found if not each.ok]:
            preflight.show_findings(shown)
        seconds = time.monotonic() - started
        say(f"checks: {passed} of {len(found)} passed{rest} ({seconds:.1f} s)")
        if preflight.has_failed(found) and not check_only:
            say(
                "no process was started: fix the failed checks, or start anyway with --skip_check "
                "(--check prints all results)"
            )
        return found

    def _refuse_missing_checkpoint(self, first: Installation) -> None:
        """Refuse a --checkpoint that does not exist, as the checks do, before a folder is made."""
        checkpoint = self._request.flags.get("checkpoint", "")
        if checkpoint in ("", *self._request.policies):
            return
        if (self._expected_logdir / "checkpoints").exists():
            return  # a run that has started before does not read it
        own = f"{self._learners_logdir(first, self._expected_logdir)}/checkpoints"
        paths = [own, first.absolute_path(checkpoint)]
        if not any(self._hosts.call(first.host_id, "exists", path=path) for path in paths):
            where = first.host_id or "this machine"
            raise UserError(
                f"--checkpoint={checkpoint} does not exist on {where}; give the folder of a run, "
                f"or one of the folders in its checkpoints/"
            )

    def _learners_logdir(self, first: Installation, local_logdir: Path) -> str:
        """Return the path of the run's folder on the learners' machine."""
        if not first.host_id:
            return str(local_logdir)
        return first.absolute_path(self._request.logdir or f"runs/{local_logdir.name}")

    def _start(
        self, installation_of: InstallationOf, first: Installation, unreached: dict[str, str]
    ) -> Callable[[], int]:
        run, hosts, config = self._run, self._hosts, self._config
        try:
            logdir = self._request.make_logdir().absolute()
        except OSError as error:
            raise UserError(f"--logdir={self._expected_logdir}: {error.strerror}") from None
        run.create_state(self._request.make_token())
        remembered.write(run, config)
        learners = [worker for worker in self._workers if worker.job == "learner"]
        if process_plan.other_installations(learners, installation_of):
            made = self._request.make_certificates(order_channel.ROLES)
            mpirun_daemons.write_credentials(run, made)
        learners_logdir = self._learners_logdir(first, logdir)
        shared = connect.is_shared_folder(
            hosts, first.host_id, learners_logdir, logdir, "is-shared"
        )
        if (
            first.host_id
            and not shared
            and fetch.restore_if_missing(hosts, first.host_id, logdir, learners_logdir, say)
        ):
            say(
                f"copied the checkpoints in {logdir} to {first.host_id}:{learners_logdir}; "
                f"training resumes from the last one",
            )
        follower = follow.Follower(self._control, logdir)
        follower.install_signal_handlers()
        started = time.monotonic()
        flags = self._request.flags | {"logdir": learners_logdir}
        options = (logdir, shared, installation_of, self._request.log_max_mb, say)
        try:
            record, actors = start.start_run(run, hosts, self._workers, config, flags, *options)
            mirror = connect.mirror_states(run, record, hosts)
            has_ended = False
            if actors:
                addresses = follower.wait_for_learners()
                has_ended = not addresses
                if addresses:
                    record = start.start_actors(
                        run,
                        hosts,
                        actors,
                        addresses,
                        config,
                        record,
                        self._request.log_max_mb,
                        say,
                    )
        except Exception:
            if started_record := run.record:
                self._control.undo_start(started_record)
            raise
        reached = len(hosts.remote_nodes) - len(unreached)
        on_hosts = f" on {reached} host{'s' * (reached != 1)}" if hosts.remote_nodes else ""
        processes = f"{len(record.processes)} process{'es' * (len(record.processes) != 1)}"
        follower.tell(
            f"{run.name}: started {processes}{on_hosts} in "
            f"{time.monotonic() - started:.1f} s; results: {logdir}"
        )
        followed = FollowedRun(
            self._control,
            mirror,
            config,
            self._workers,
            installation_of,
            self._request.log_max_mb,
            say,
        )
        if config.detach and not follower.interrupted and not has_ended:
            left = leave_controller(run, self._request, followed, lambda: follower.interrupted)
            if left is not None:
                return lambda: left
        on_each = " on each host" if hosts.remote_nodes else ""
        tmux_hint = (
            f"`tmux attach -t {run.name}`{on_each} shows the processes; " if record.socket else ""
        )
        follower.tell(f"{tmux_hint}{follow.KEYS_HINT}")
        recovery = Recovery(followed)

        def detach() -> int | None:
            return leave_controller(run, self._request, followed, lambda: follower.interrupted)

        def follow_run() -> int:
            with mirror_folder(config.mirror_logdir, run, hosts, record, say):
                return follower.follow(recovery, config.stop_secs, detach)

        return follow_run


def _default_installations(run: Run) -> InstallationOf:
    """Return installations as the CSV names them, without a connection to any host."""

    def installation_of(worker: Worker) -> Installation:
        host_id = host_id_of(worker)
        if not host_id:
            return host_environment.local_installation(worker, str(run.folder))
        return host_environment.remote_installation(worker, host_id, worker.ip, {})

    return installation_of


def _print_commands(processes: list[Process], from_shell: list[str]) -> None:
    if any(
        part.startswith("--learner_hosts=") and process_plan.chooses_port(part)
        for part in processes[0].command
    ):
        say("# port 0: the learner takes a free port, which actors get instead of it once it has")
    for process in processes:
        say(f"# {process.name} on {process.worker.ip}, in {process.workdir}")
        say(process.shell_line(from_shell))
