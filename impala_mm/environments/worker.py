"""A process that steps some environments of a `WorkerVector`, by the vector's requests.

`worker_vector` starts it. It does not import TensorFlow, which takes seconds and 300 MB. It ends
when the vector asks for it, or when the vector's process has ended, whatever its environments do.
"""

import errno
import faulthandler
import fcntl
import functools
import os
import select
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from impala_mm.config import user_modules
from impala_mm.environments import gym_vector, nests
from impala_mm.environments.faults import CLOSED_CONNECTION, FAILURES, make_fault
from impala_mm.environments.levels import vector_of
from impala_mm.environments.make import made_level
from impala_mm.environments.types import BadLevel, EnvironmentSpec, Fault, Step
from impala_mm.environments.worker_vector import Reply, Work, map_nest

# Requests to the process that runs the environments stop or end that process, not this one.
_NOT_FOR_WORKERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


def run(connection_file: int, life_file: int, stacks_file: int, memory_files: list[int]) -> None:
    """Serve requests until the connection is closed; the arguments are open files."""
    _end_with_the_vector(life_file)
    faulthandler.enable(os.fdopen(stacks_file, "w"), all_threads=False)
    faulthandler.register(signal.SIGUSR2, stacks_file, all_threads=False)
    for number in _NOT_FOR_WORKERS:
        # Programs that an environment starts do not inherit a handler, as they would SIG_IGN.
        signal.signal(number, lambda *_: None)
    connection = Connection(connection_file)
    work: Work = connection.recv()
    vector: list[gym_vector.GymVector] = []

    def open_vector() -> float:
        user_modules.import_all(work.imports)
        vector.append(_open(work, memory_files[0]))
        return vector[0].picture_rate

    if not _answer(connection, work, open_vector, []):
        return
    envs = vector[0]
    actions = nests.row(map_nest(envs.spec.actions.zeros(work.total), memory_files[1]), work.rows)
    for file in memory_files:
        os.close(file)

    def play(resets: bool) -> Any:
        envs.reset() if resets else envs.step(actions)
        return envs.episodes()

    calls: dict[str, Callable[..., Any]] = {
        "play": play,
        "picture": envs.picture,
        "judge_goals": envs.judge_goals,
    }
    while True:
        try:
            name, *arguments = connection.recv()
        except (EOFError, OSError):  # the vector was closed
            break
        _answer(connection, work, functools.partial(calls[name], *arguments), envs.faults)
    envs.close()


def _open(work: Work, memory_file: int) -> gym_vector.GymVector:
    """Make the environments, after one of which the spaces are read; they write to the memory."""
    level = made_level(work.level_name, **work.options)
    conversion = level.conversion(work.has_masks)
    actions, threshold = conversion.actions, level.reward_threshold
    spec = EnvironmentSpec(level.name, None, actions, level.repeats, threshold)
    steps = map_nest(gym_vector.blank_step(work.total, conversion), memory_file)
    return vector_of(conversion)(
        spec,
        conversion,
        level.open,
        work.size // conversion.agents,
        work.seed,
        work.renders and not work.first,
        first=work.first,
        now=Step(*nests.row(steps, work.rows)),
    )


def _answer(
    connection: Connection, work: Work, call: Callable[[], Any], faults: list[Fault]
) -> bool:
    """Send the reply to a request, with the faults until then; return whether it succeeded."""
    try:
        reply = Reply(call(), tuple(faults))
        faults.clear()
    except BadLevel as error:
        reply = Reply(bad_level=str(error))
    except FAILURES as error:
        reply = Reply(raised=make_fault(f"an environment of {work.level_name}", error))
    try:
        connection.send(reply)
    except BrokenPipeError:  # the vector has ended, and so will this process
        pass
    except OSError as error:
        if error.errno == errno.EBADF:
            os._exit(CLOSED_CONNECTION)
        raise
    return not (reply.bad_level or reply.raised)


def _end_with_the_vector(life_file: int) -> None:
    """Let the kernel end this process once no process holds the other end of a pipe.

    Signals that a parent's end causes (PR_SET_PDEATHSIG) come already when its thread ends.
    """
    fcntl.fcntl(life_file, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(life_file, fcntl.F_GETFL)
    fcntl.fcntl(life_file, fcntl.F_SETFL, flags | os.O_ASYNC)  # sends SIGIO, which kills
    poll = select.poll()
    poll.register(life_file, 0)
    if poll.poll(0):  # it had ended before
        os._exit(0)
