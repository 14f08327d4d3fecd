"""A learner's process: training from the flags to the exit code."""

import dataclasses
import errno
import os
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from impala_mm.config import auto, flags, user_modules
from impala_mm.config.errors import UserMistake
from impala_mm.config.settings import Config
from impala_mm.distributed.agreement import Agreement
from impala_mm.jobs import before_start
from impala_mm.learner import flag_conflicts
from impala_mm.records import checkpoint, mirror, tracking
from impala_mm.records.outputs import RunOutputs, make_outputs
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import heartbeat, lifecycle, ports, run_token, starter
from impala_mm.runtime.log import ProcessLogger
from impala_mm.runtime.starter import process_rank, widen_core_binding
from impala_mm.runtime.timing import format_duration
from impala_mm.transport.front import CONNECTIONS
from impala_mm.transport.messages import PROTOCOL

if TYPE_CHECKING:
    from impala_mm.learner.learner import Learner
    from impala_mm.learner.monitor import LearnerMonitor
    from impala_mm.learner.phases import PolicyTools
    from impala_mm.learner.start import Start

# Seconds that a failed rank leaves rank 0 to print why: mpirun ends all ranks once one has failed.
_LAST_WORDS_SECONDS = 5.0
_FEW_ENVIRONMENTS = 4  # of --debug
_PROJECT = Path(__file__).resolve().parents[2]


def run(config: Config) -> NoReturn:
    """Train until the run or the user ends it."""
    _set_limits(config)
    began, here = time.monotonic(), process_rank()
    say = ProcessLogger(f"learner {here.rank}" if here.size > 1 else "learner")
    if here.size > 1 and (not config.job_name or config.num_learners > 1):
        flags.refuse(
            f"{here.size} processes were started together: each must be a learner, with "
            f"--job_name=learner and no --num_learners; start actors one by one"
        )
    address = _address(config, here.rank)
    flag_conflicts.refuse_before_loading(config, here.size)
    freed = widen_core_binding()
    if here.rank == 0:
        refuse_missing(config)
    token_file = run_token.describe(config)  # before TensorFlow is loaded and the folder is made
    # With --debug, a breakpoint of an environment is for this process.
    if here.rank == 0 and not (config.debug or before_start.was_made()):
        before_start.warn_of_slow(config, here.local_size)
        before_start.before_training(config)
    held, problem = None, ""
    try:
        address, held = _hold(config, address)
    except OSError as error:
        problem = str(error)
    ending: list[int] = []  # the signals that requested a stop
    lifecycle.handle_end_signals(lambda number, _: ending.append(number))
    agreement = Agreement(config, PROTOCOL, address, problem, token_file)
    agreement.reach_through_mpi(say)
    if problem and here.size == 1:
        flags.refuse(problem)
    if freed:
        say(freed)
    folder = RunFolder(config) if here.rank == 0 else None  # the other learners write nothing
    outputs = make_outputs(config, folder, say)
    try:
        code = _train(config, agreement, held, folder, began, outputs, ending)
    except Exception as error:
        _report_crash(error, config, folder, outputs)
        code = 1
    finally:
        outputs.end()
    if code == 1 and here.rank:
        time.sleep(_LAST_WORDS_SECONDS)
    lifecycle.exit_now(code)


def for_debugging(config: Config) -> Config:
    """Return the flags with which --debug trains in this process; refuse what does not fit."""
    several = {
        "--job_name": bool(config.job_name),
        "--mode": config.mode in ("test", "record", "export", "rehearsal"),
        "--num_learners": config.num_learners > 1 or process_rank().size > 1,
        "--num_actors": config.num_actors not in (1, Config().num_actors),
        "--inference=learner": config.inference == "learner",
        "--env_workers": config.env_workers > 0,
        "--deterministic_run": config.deterministic_run,
        "--xla": config.xla,
    }
    if refused := [name for name, is_given in several.items() if is_given]:
        flags.refuse(
            f"--debug trains in one process without graphs: leave out {' and '.join(refused)}"
        )
    os.environ[starter.ACTORS_VARIABLE] = "1"
    os.environ.setdefault(starter.COMMAND_VARIABLE, starter.command())
    # A batch of an algorithm with rounds is then by one policy.
    few = max(n for n in range(1, _FEW_ENVIRONMENTS + 1) if config.batch_size % n == 0)
    size = few if config.num_envs == auto.AUTO else config.num_envs
    return dataclasses.replace(
        config, num_envs=size, inference="actor", learner_hosts="localhost:0"
    )


def _set_limits(config: Config) -> None:
    """Limit the arenas of malloc, and let this process open as many files as actors may need."""
    # Compiled updates allocate often: their thread needs an arena of its own, as do threads that
    # compute side by side.
    several = max(config.update_threads.at_once, config.inter_op_threads) > 1
    if process_rank().size > 1 or not several:
        lifecycle.use_one_malloc_arena()
    lifecycle.raise_file_limit(2 * CONNECTIONS)  # each connection of an actor takes one


def _report_crash(
    error: Exception, config: Config, folder: RunFolder | None, outputs: RunOutputs
) -> None:
    """Print and log how to resume the run, after the traceback of an unforeseen exception."""
    what = f"{error}"
    if not isinstance(error, UserMistake):  # that is a sentence, such as on damaged recorded games
        traceback.print_exc()
        if outputs.say.log:
            outputs.say.log.write(traceback.format_exc())
        what = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")
    outputs.event_hook.call("end", f"error: {error}")
    hint = f"; {_resume_hint(config, folder)}" if folder else ""
    if folder or isinstance(error, UserMistake):
        outputs.say(f"error: {what}{hint}")


def _train(
    config: Config,
    agreement: Agreement,
    held: ports.HeldAddress | None,
    folder: RunFolder | None,
    began: float,
    outputs: RunOutputs,
    ending: list[int],
) -> int:
    """Train until the run or the user ends it; return the exit code."""
    say, event_hook = outputs.say, outputs.event_hook
    if folder:
        say(f"writes to {folder.path}; {_tensorboard_hint(folder.path)}")
        heartbeat.report_learner_hosts(agreement.addresses)
    lifecycle.load_tensorflow()
    from impala_mm.distributed.group import join_group  # noqa: PLC0415
    from impala_mm.learner import phases, setup  # noqa: PLC0415
    from impala_mm.learner.monitor import LearnerLost  # noqa: PLC0415
    from impala_mm.learner.start import Start, find_levels_and_device  # noqa: PLC0415
    from impala_mm.replay.source import Turns  # noqa: PLC0415
    from impala_mm.runtime import devices  # noqa: PLC0415

    levels, device = find_levels_and_device(config)
    say(f"TensorFlow loaded ({time.monotonic() - began:.1f} s); trains on {device}")
    if config.xla and (why := devices.why_not_compiled()):
        flags.refuse(f"--xla: XLA does not compile for {device} here: {why}")
    group = join_group(config)
    code = 2
    try:
        addresses = agreement.reach(group.gather)
        assert held
        if folder:
            heartbeat.report_learner_hosts(addresses)
        start = Start(
            config,
            levels,
            group,
            addresses,
            held=held,
            folder=folder,
            began=began,
            outputs=outputs,
            tools=_policy_tools(lambda: bool(ending)),
            played=Turns() if config.debug else None,
        )
        monitor, learner = setup.build_learner(start)

        def meanwhile() -> None:
            if ending:
                learner.stop(lifecycle.end_reason(ending))

        code = 1
        row = {} if monitor.finished else _run(start, monitor, learner, meanwhile)
        result, code = _describe_result(monitor, row, folder), monitor.exit_code(ending)
        monitor.wait_for_all_to_save()
        if folder:
            _report_end(say, result, code, agreement)
        if why := monitor.why_unsaved:
            say(f"error: {why}; {_resume_hint(config, folder)}")
        event_hook.call("end", result)
    except LearnerLost as error:
        say(f"error: {error}; {_resume_hint(config, folder)}")
        event_hook.call("end", f"error: {error}")
        return 1
    except phases.Stopped:
        code = _report_stop(folder, config, group, outputs, ending)
    except setup.FAILURES as error:
        code = 2 if isinstance(error, UserMistake) else code
        hint = f"; {_resume_hint(config, folder)}" if code == 1 else ""
        _report_failure(error, outputs, hint, folder)
        group.gather(None, "said")
    group.leave()
    return code


def _run(
    start: "Start", monitor: "LearnerMonitor", learner: "Learner", meanwhile: Callable[[], None]
) -> dict[str, Any]:
    """Train until a limit is reached or `meanwhile` stops it; return the last row of metrics."""
    if not start.played:
        return monitor.run(meanwhile)
    from impala_mm.jobs import debug  # noqa: PLC0415

    return debug.run(start, monitor, learner, meanwhile)


def _report_failure(
    error: Exception, outputs: RunOutputs, hint: str, folder: RunFolder | None
) -> None:
    """Print on rank 0 why all learners have failed, and call the user's hook.

    The frames of a user's algorithm are printed first.
    """
    from impala_mm.learner.train_step import NotFinite  # noqa: PLC0415

    if folder:
        user_modules.show_cause(error)
        outputs.say(f"error: {error}{hint}")
    if isinstance(error, NotFinite):
        outputs.event_hook.call("nan", f"error: {error}")
    outputs.event_hook.call("end", f"error: {error}")


def _policy_tools(stopping: Callable[[], bool]) -> "PolicyTools":
    """Return how a learner loads other policies; TensorFlow must be loaded.

    `stopping` returns whether the user wants the run to end.
    """
    from impala_mm.evaluation.recording import describe  # noqa: PLC0415
    from impala_mm.learner.phases import PolicyTools  # noqa: PLC0415
    from impala_mm.policy.policy import load_policy  # noqa: PLC0415
    from impala_mm.teachers.load import load_teachers  # noqa: PLC0415
    from impala_mm.teachers.playing import collect, mean_return  # noqa: PLC0415

    return PolicyTools(load_policy, load_teachers, mean_return, collect, describe, stopping)


def _report_stop(
    folder: RunFolder | None, config: Config, group: Any, outputs: RunOutputs, ending: list[int]
) -> int:
    """Say that the user ended the run before its first update; return the exit code."""
    if folder:
        result = f"stopped before the first update; {_resume_hint(config, folder)}"
        outputs.say(result)
        outputs.event_hook.call("end", result)
    group.gather(None, "said")
    return lifecycle.exit_code(ending)


def hold(address: str, flag: str, reserved: Collection[int] = ()) -> ports.HeldAddress:
    """Hold the address in a flag; if that is impossible, raise OSError with the advice.

    `reserved`: ports that port 0 does not stand for, even if they are free.
    """
    try:
        return ports.HeldAddress(address, reserved)
    except OSError as error:
        advice = ""
        if error.errno == errno.EADDRINUSE:
            free = ports.HeldAddress(f"{ports.split_address(address)[0]}:0")
            other = f"--{flag}={free.address}"
            advice = f"; end that process, or choose another address, such as {other}"
            advice += ", also for its actors" if flag == "learner_hosts" else ""
            free.release()
        elif error.errno == errno.EADDRNOTAVAIL:
            advice = (
                "; this machine does not have that address: name this machine in --learner_hosts, "
                "or where it listens in --bind_address, such as 0.0.0.0:8001"
            )
        raise OSError(f"the learner cannot listen: {error.strerror or error}{advice}") from None


def refuse_missing(config: Config) -> None:
    """Exit with code 2 if a tracker, a mirror or a checkpoint cannot be used; only for rank 0.

    A run that has started before does not read --checkpoint of --mode=train_from again.
    """
    if config.track:
        tracking.make_tracker(config.track)
    if config.mirror:
        mirror.open_store(config.mirror)
    if config.mode != "train_from" or config.mirror:  # which may hold the run
        return
    if checkpoint.of_run(config.logdir):
        return
    if why := checkpoint.why_missing(checkpoint.resolve(config.checkpoint)):
        flags.refuse(
            f"--checkpoint: {why}; give the folder of a run, or one of the "
            f"folders in its checkpoints/"
        )


def _address(config: Config, rank: int) -> str:
    """Return the address of this learner: its own entry of --learner_hosts, or the only one."""
    addresses = ports.parse_learner_hosts(config)
    if len(addresses) == 1:
        return addresses[0]
    if rank >= len(addresses):
        flags.refuse(
            f"{process_rank().size} learners were started, but --learner_hosts names "
            f"{len(addresses)}: give one address for each learner"
        )
    return addresses[rank]


def _hold(config: Config, address: str) -> tuple[str, ports.HeldAddress]:
    """Return the address at which actors reach this learner, and the one where it listens, held.

    Port 0 in either flag stands for the port in the other one; in both, for the first free port.
    Raises OSError.
    """
    host, port = ports.split_address(address)
    bind_host, bind_port = ports.split_address(config.bind_address or address)
    flag = "bind_address" if config.bind_address else "learner_hosts"
    # The ports of other learners, which may start later and on this machine.
    addresses = config.learner_hosts.split(",")
    reserved = [ports.split_address(each.strip())[1] for each in addresses]
    held = hold(f"{bind_host}:{bind_port or port}", flag, reserved)
    return f"{host}:{port or held.port}", held


def _report_end(say: ProcessLogger, result: str, code: int, agreement: Agreement) -> None:
    """Print how the run ended, and report to the supervisor that it ended as it should, if so."""
    say(result)
    if code == 0:
        heartbeat.report_end(agreement.addresses)


def _describe_result(
    monitor: "LearnerMonitor", row: dict[str, Any], folder: RunFolder | None
) -> str:
    """Return the last line of a run; only rank 0 has a row of metrics and the run's folder."""
    logdir = folder.path if folder else Path()
    if monitor.finished:
        return f"the run in {logdir} is finished: {monitor.finished}"
    if not row:
        return f"finished: {monitor.end_reason}"
    result = f"{row['updates']:,} updates"  # of games that others have recorded
    if row["frames"]:
        mean = row.get("episode_return")
        result = "no finished episodes" if mean is None else f"mean return {mean:.2f}"
        result += f" after {row['frames']:,.0f} frames"
    return (
        f"finished: {monitor.end_reason}; {result} in {format_duration(row['seconds'])}; "
        f"results: {logdir}"
    )


def _resume_hint(config: Config, folder: RunFolder | None) -> str:
    """Return how to resume the run; only rank 0 knows its folder if --logdir does not name it."""
    logdir = str(folder.path) if folder else config.logdir
    if checkpoint.of_run(logdir):
        return (
            f"the last checkpoint is intact: the same flags with --logdir={logdir} resume from it"
        )
    return f"no checkpoint was saved yet: the same flags with --logdir={logdir} start over"


def _tensorboard_hint(logdir: Path) -> str:
    """Return how to see the curves: `make` knows the project's own folder of runs."""
    here = Path.cwd() == _PROJECT and _PROJECT / "runs" in logdir.resolve().parents
    command = "make tensorboard" if here else f"tensorboard --logdir={logdir}"
    return f"`{command}` shows the curves at http://localhost:6006"
