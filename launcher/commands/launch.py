"""Starts a run: reaches its hosts, checks, starts everything, and stays to watch."""

import time
from pathlib import Path

from launcher.checks import preflight
from launcher.checks.finding import Finding
from launcher.deploy import deploy
from launcher.node import tmux
from launcher.node.run_registry import Run
from launcher.plan import host_environment, process_plan
from launcher.plan.host_environment import Installation, InstallationOf
from launcher.plan.process_plan import Process
from launcher.plan.request import Request, UserError, read_workers, refuse_launcher_flags
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts, find_targets, host_id_of, libtmux_server
from launcher.running import connect, follow, start
from launcher.running.recovery import Recovery
from launcher.running.run_control import RunControl
from launcher.transfer import fetch
from launcher.transfer.mirror import mirror_folder


def launch(run: Run, request: Request) -> int:
    """The exit code; of a dry run what would be is all that is printed."""
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
            )
        )
        return 0
    if config.wheelhouse and not config.deploy:
        raise UserError("--wheelhouse is for --deploy, which brings its packages to the hosts")
    run.refuse_running()
    hosts = Hosts(run.name, find_targets(workers), request.settings)
    try:
        return _Launcher(run, request, workers, hosts, expected_logdir).launch()
    finally:
        connect.disconnect(run, hosts)


class _Launcher:
    """Launches one run, from connecting its hosts to its end."""

    def __init__(
        self, run: Run, request: Request, workers: list[Worker], hosts: Hosts, expected_logdir: Path
    ):
        """`expected_logdir`: the run's folder here, as far as it is known."""
        self._run, self._request, self._config = run, request, request.launcher
        self._workers, self._hosts, self._expected_logdir = workers, hosts, expected_logdir
        self._control = RunControl(run, hosts)

    def launch(self) -> int:
        """The exit code."""
        if socket := tmux.default_socket():
            tmux.Session(self._run.name, libtmux_server(socket)).refuse_foreign()
        unreached = self._connect_hosts()
        installation_of = connect.find_installations(
            self._workers, self._hosts, self._config.deploy, print
        )
        first = installation_of(next(worker for worker in self._workers if worker.job == "learner"))
        if self._config.check or not self._config.skip_check:
            found = self._check(installation_of, first, unreached)
            if self._config.check or preflight.has_failed(found):
                return int(preflight.has_failed(found))
        elif first.host_id in unreached:
            raise UserError(f"the learners' host does not answer: {unreached[first.host_id]}")
        return self._start(installation_of, first, unreached)

    def _connect_hosts(self) -> dict[str, str]:
        """Every host: why not, of those that do not answer."""
        config = self._config
        unreached = self._hosts.connect(
            print, connect.candidate_pythons(self._workers, config.deploy)
        )
        self._control.end_pending(print)
        if config.deploy and deploy.deploy_project(self._hosts, self._workers, config, print):
            raise UserError("nothing was started: not all hosts are ready for it")
        return unreached

    def _check(
        self, installation_of: InstallationOf, first: Installation, unreached: dict[str, str]
    ) -> list[Finding]:
        """Shown whole where that is all that is asked for, else what is not good."""
        started, check_only = time.monotonic(), self._config.check
        flags = self._request.flags | {
            "logdir": self._learners_logdir(first, self._expected_logdir)
        }
        found = preflight.check_run(
            preflight.PlannedRun(
                self._workers,
                process_plan.make_processes(self._workers, self._config, flags, installation_of),
                installation_of,
                self._hosts,
                unreached,
                self._config,
                self._request.flags,
                logdir=self._expected_logdir,
                check_free=self._request.check_free,
            )
        )
        good = sum(finding.ok is True for finding in found)
        if shown := found if check_only else [each for each in found if not each.ok]:
            preflight.show_findings(shown)
        seconds = time.monotonic() - started
        print(f"checked: {good} of {len(found)} good ({seconds:.1f} s)", flush=True)
        if preflight.has_failed(found) and not check_only:
            print("nothing was started; --check shows all of it, --skip_check starts all the same")
        return found

    def _learners_logdir(self, first: Installation, local_logdir: Path) -> str:
        """That the learners write to, on their machine."""
        if not first.host_id:
            return str(local_logdir)
        return first.absolute_path(self._request.logdir or f"runs/{local_logdir.name}")

    def _start(
        self, installation_of: InstallationOf, first: Installation, unreached: dict[str, str]
    ) -> int:
        run, hosts, config = self._run, self._hosts, self._config
        with run.locked():
            run.refuse_running()
            try:
                logdir = self._request.make_logdir().absolute()
            except OSError as error:
                raise UserError(f"--logdir={self._expected_logdir}: {error.strerror}") from None
            run.create_state()
            learners_logdir = self._learners_logdir(first, logdir)
            shared = connect.is_shared_folder(
                hosts, first.host_id, learners_logdir, logdir, "is-shared"
            )
            if (
                first.host_id
                and not shared
                and fetch.restore_if_missing(hosts, first.host_id, logdir, learners_logdir)
            ):
                print(f"what was saved was brought to {first.host_id}", flush=True)
            follower = follow.Follower(self._control, logdir)
            follower.install_signal_handlers()
            started = time.monotonic()
            flags = self._request.flags | {"logdir": learners_logdir}
            options = (logdir, shared, installation_of, self._request.log_max_mb, print)
            try:
                record = start.start_run(run, hosts, self._workers, config, flags, *options)
            except Exception:
                if started_record := run.record:
                    self._control.undo_start(started_record)
                raise
            mirror = connect.mirror_states(run, record, hosts)
        reached = len(hosts.remote_nodes) - len(unreached)
        on_hosts = f" on {reached} host{'s' * (reached != 1)}" if hosts.remote_nodes else ""
        print(
            f"{run.name}: {len(record.processes)} processes started{on_hosts} in "
            f"{time.monotonic() - started:.1f} s; all of it in {logdir}"
        )
        if len(record.learner_places) > 1:
            print(
                f"the learners' supervisor on {first.host_id or 'this machine'} keeps what it "
                f"needs to reach the other learners in its memory: if it dies, start the run again"
            )
        if config.detach and not follower.interrupted:
            print(follow.detached_message(run))
            return 0
        on_each = " on each host" if hosts.remote_nodes else ""
        attach_hint = (
            f"`tmux attach -t {run.name}`{on_each} looks inside, " if record.socket else ""
        )
        print(f"{attach_hint}`d` leaves it running, Ctrl-C saves and stops it", flush=True)
        recovery = Recovery(
            *(self._control, mirror, config, self._workers, installation_of),
            *(self._request.log_max_mb, print),
        )
        with mirror_folder(config.mirror_logdir, run, hosts, record, print):
            return follower.follow(recovery, config.stop_secs)


def _default_installations(run: Run) -> InstallationOf:
    """Without asking any host."""

    def installation_of(worker: Worker) -> Installation:
        host_id = host_id_of(worker)
        if not host_id:
            return host_environment.local_installation(worker, str(run.folder))
        return host_environment.remote_installation(worker, host_id, worker.ip, {})

    return installation_of


def _print_commands(processes: list[Process]) -> None:
    for process in processes:
        print(f"# {process.name} on {process.worker.ip}, in {process.workdir}")
        print(process.shell_line())
