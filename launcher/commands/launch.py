"""Starts a run: reaches its hosts, checks, starts everything, and stays to watch."""

import time
from pathlib import Path

from launcher.checks import preflight as check
from launcher.deploy import deploy
from launcher.node import tmux as windows
from launcher.node.run_registry import Run
from launcher.plan import host_environment, process_plan
from launcher.plan.host_environment import Ground, Grounds
from launcher.plan.process_plan import Process
from launcher.plan.request import Asked, Refused, read_csv, refuse_what_is_ours
from launcher.plan.workers_csv import Worker
from launcher.remote.hosts import Hosts, place, targets, tmux
from launcher.running import connect, follow, start
from launcher.running.recovery import Recovery
from launcher.running.run_control import Everywhere
from launcher.transfer import fetch
from launcher.transfer import mirror as mirroring


def launch(run: Run, asked: Asked) -> int:
    """The exit code; of a dry run what would be is all that is printed."""
    refuse_what_is_ours(asked)
    workers = read_csv(asked)
    supposed = Path(asked.logdir or "runs/NEW").absolute()
    config = asked.launcher
    if config.dry_run:
        _print(
            process_plan.make(
                workers, config, asked.flags | {"logdir": str(supposed)}, _supposed(run)
            )
        )
        return 0
    if config.wheelhouse and not config.deploy:
        raise Refused("--wheelhouse is for --deploy, which brings its packages to the hosts")
    run.refuse_taken()
    hosts = Hosts(run.name, targets(workers), asked.settings)
    try:
        return _Launch(run, asked, workers, hosts, supposed).launch()
    finally:
        connect.leave(run, hosts)


class _Launch:
    """One, from its hosts to its end."""

    def __init__(self, run: Run, asked: Asked, workers: list[Worker], hosts: Hosts, supposed: Path):
        """`supposed`: the run's folder here, as far as it is known."""
        self._run, self._asked, self._config = run, asked, asked.launcher
        self._workers, self._hosts, self._supposed = workers, hosts, supposed
        self._everywhere = Everywhere(run, hosts)

    def launch(self) -> int:
        """The exit code."""
        if socket := windows.here():
            windows.Session(self._run.name, tmux(socket)).refuse_foreign()
        unreached = self._reach()
        grounds = connect.survey(self._workers, self._hosts, self._config.deploy, print)
        first = grounds(next(worker for worker in self._workers if worker.job == "learner"))
        if self._config.check or not self._config.skip_check:
            found = self._checked(grounds, first, unreached)
            if self._config.check or check.failed(found):
                return int(check.failed(found))
        elif first.place in unreached:
            raise Refused(f"the learners' host does not answer: {unreached[first.place]}")
        return self._start(grounds, first, unreached)

    def _reach(self) -> dict[str, str]:
        """Every host: why not, of those that do not answer."""
        config = self._config
        unreached = self._hosts.reach(print, connect.pythons(self._workers, config.deploy))
        self._everywhere.end_leftovers(print)
        if config.deploy and deploy.deploy(self._hosts, self._workers, config, print):
            raise Refused("nothing was started: not all hosts are ready for it")
        return unreached

    def _checked(
        self, grounds: Grounds, first: Ground, unreached: dict[str, str]
    ) -> list[check.Finding]:
        """Shown whole where that is all that is asked for, else what is not good."""
        begin, only = time.monotonic(), self._config.check
        flags = self._asked.flags | {"logdir": self._logdir_there(first, self._supposed)}
        found = check.check(
            check.Asked(
                self._workers,
                process_plan.make(self._workers, self._config, flags, grounds),
                grounds,
                self._hosts,
                unreached,
                self._config,
                self._asked.flags,
                logdir=self._supposed,
                check_free=self._asked.check_free,
            )
        )
        good = sum(finding.good is True for finding in found)
        if shown := found if only else [each for each in found if not each.good]:
            check.show(shown)
        seconds = time.monotonic() - begin
        print(f"checked: {good} of {len(found)} good ({seconds:.1f} s)", flush=True)
        if check.failed(found) and not only:
            print("nothing was started; --check shows all of it, --skip_check starts all the same")
        return found

    def _logdir_there(self, first: Ground, here: Path) -> str:
        """That the learners write to, on their machine."""
        if not first.place:
            return str(here)
        return first.path(self._asked.logdir or f"runs/{here.name}")

    def _start(self, grounds: Grounds, first: Ground, unreached: dict[str, str]) -> int:
        run, hosts, config = self._run, self._hosts, self._config
        with run.being_changed():
            run.refuse_taken()
            try:
                logdir = self._asked.make_logdir().absolute()
            except OSError as error:
                raise Refused(f"--logdir={self._supposed}: {error.strerror}") from None
            run.renew()
            told = self._logdir_there(first, logdir)
            shared = connect.is_shared(hosts, first.place, told, logdir, "is-shared")
            if first.place and not shared and fetch.give_back(hosts, first.place, logdir, told):
                print(f"what was saved was brought to {first.place}", flush=True)
            follower = follow.Follower(self._everywhere, logdir)
            follower.listen()
            begin = time.monotonic()
            flags = self._asked.flags | {"logdir": told}
            made = (logdir, shared, grounds, self._asked.log_max_mb, print)
            try:
                record = start.start(run, hosts, self._workers, config, flags, *made)
            except Exception:
                if begun := run.record:
                    self._everywhere.undo(begun)
                raise
            mirror = connect.keep(run, record, hosts)
        reached = len(hosts.there) - len(unreached)
        there = f" on {reached} host{'s' * (reached != 1)}" if hosts.there else ""
        print(
            f"{run.name}: {len(record.processes)} processes started{there} in "
            f"{time.monotonic() - begin:.1f} s; all of it in {logdir}"
        )
        if len(record.learner_places) > 1:
            print(
                f"the learners' supervisor on {first.place or 'this machine'} keeps what it needs "
                f"to reach the other learners in its memory: if it dies, start the run again"
            )
        if config.detach and not follower.interrupted:
            print(follow.how_to_come_back(run))
            return 0
        on_each = " on each host" if hosts.there else ""
        inside = f"`tmux attach -t {run.name}`{on_each} looks inside, " if record.socket else ""
        print(f"{inside}`d` leaves it running, Ctrl-C saves and stops it", flush=True)
        recovery = Recovery(
            *(self._everywhere, mirror, config, self._workers, grounds),
            *(self._asked.log_max_mb, print),
        )
        with mirroring.during(config.mirror_logdir, run, hosts, record, print):
            return follower.follow(recovery, config.stop_secs)


def _supposed(run: Run) -> Grounds:
    """Without asking any host."""

    def of(worker: Worker) -> Ground:
        where = place(worker)
        if not where:
            return host_environment.here(worker, str(run.folder))
        return host_environment.elsewhere(worker, where, worker.ip, {})

    return of


def _print(processes: list[Process]) -> None:
    for process in processes:
        print(f"# {process.name} on {process.worker.ip}, in {process.workdir}")
        print(process.line())
