"""Construction of a learner with all its parts, from its flags.

`jobs.learner` imports this once TensorFlow is loaded, and runs the learner that it returns.
"""

import functools
from pathlib import Path
from typing import NamedTuple

from impala_mm.algorithms import flag_reads
from impala_mm.algorithms.agent import Agent, make_agent
from impala_mm.algorithms.contract import AlgorithmMistake
from impala_mm.config import auto, flags
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.distributed import agreement
from impala_mm.distributed.group import VariablesDiffer
from impala_mm.learner import flag_conflicts, phases, serving
from impala_mm.learner.learner import Learner, RunLimits
from impala_mm.learner.learner_reports import SilentLearners
from impala_mm.learner.monitor import LearnerMonitor, RecordKeeper
from impala_mm.learner.own_state import OwnState
from impala_mm.learner.run_status import RunStatus
from impala_mm.learner.sources.choice import make_sources
from impala_mm.learner.sources.replay import Position, RunOnHost
from impala_mm.learner.start import Start, config_for_task
from impala_mm.learner.train_step import NotFinite, NothingCompiled, UpdateProfiler
from impala_mm.learner.watching import NoUnrollComes
from impala_mm.records import checkpoint
from impala_mm.runtime import devices, run_token, starter
from impala_mm.runtime.starter import process_rank

# Exceptions that all learners of a run raise at the same point.
FAILURES = (
    agreement.SettingsDiffer,
    checkpoint.Mismatch,
    AlgorithmMistake,
    NotFinite,
    VariablesDiffer,
    NothingCompiled,
    NoUnrollComes,
    phases.UnfitTeacher,
)


def build_learner(start: Start) -> tuple[LearnerMonitor, Learner]:
    """Return a learner that accepts actors and has its initial variables, and its monitor."""
    say, group, folder = start.say, start.group, start.folder
    config = config_for_task(start)
    agent = make_agent(config, group.rank, start.levels, load_policy=start.tools.load_policy)
    algorithm = agent.algorithm
    compared = agent.identity | agent.identity["shared"]
    del compared["run_id"], compared["shared"]
    agreement.check_equal(group.gather(compared, "identity"))
    here, actors = process_rank(), starter.num_actors() or 0
    flag_conflicts.refuse_for_algorithm(
        config, agent, group.size, here.local_size, actors, starter.is_local_run()
    )
    capacity = serving.queue_capacity(config, agent)
    if folder:
        _describe(start, config, agent, capacity)
    agreed = _agree_on_run(start, config, agent)
    token = run_token.read_token(config)  # its own file: `Agreement` has found that all are equal
    server = serving.listen(start, config, agent, agreed.id, agreed.inference, token, capacity)
    limits = RunLimits(config, agent.spec.reward_threshold if len(agent.levels) == 1 else None)
    position = Position(lambda: learner.updates, lambda: learner.frames / limits.frames)
    sources = make_sources(config, algorithm, server, position, agreed.run, say, start.played)
    local, run = algorithm.variables.local, agreed.run.folder
    profiled = (config.profile, folder.path) if folder else ("", Path())
    learner = Learner(
        config,
        algorithm,
        group,
        source=sources.read,
        server=server,
        layout=agent.layout,
        limits=limits,
        action_repeats=agent.spec.action_repeats,
        profiler=UpdateProfiler(*profiled, say),
        own_state=OwnState(run, group.rank, group.size, sources.saved, local, say),
    )
    silent = SilentLearners(start.addresses, group.rank, token)
    status = RunStatus(learner, agent.levels, say, silent)
    keeper: RecordKeeper | None = None
    if folder:
        unread = functools.partial(flag_reads.note_unread, start.config, agent.flags_read)
        keeper = RecordKeeper.make(status, folder, start.outputs, agent.made_of, unread)
    monitor = LearnerMonitor(status, keeper)
    is_new = not monitor.resume()
    if not monitor.finished:
        phase = phases.Phases(agent, config, group, run, start.tools, say)
        if (measured := phase.begin_teachers(is_new)) and keeper:
            keeper.add_measured(measured)
        if sources.phased:
            phase.begin_data(sources.phased, learner.offline_left, learner.updates)
    if folder and (note := _record_start(start, config, learner.frames)):
        say(note)
    return monitor, learner


def _describe(start: Start, config: Config, agent: Agent, capacity: int) -> None:
    """Print what is trained, and the notes of the level and the algorithm."""
    learners = start.group.size
    of = f" on {learners} learners" if learners > 1 else ""
    megabytes = capacity * UnrollCodec(agent.algorithm.unroll).size / 1e6
    precision = devices.resolve_precision(config.precision, agent.spec.observation)
    start.say(
        f"{' and '.join(agent.levels)}, {config.algorithm} with {agent.weights:,} weights{of}, in "
        f"{precision}; the queue has room for {capacity} unrolls ({megabytes:.1f} MB)"
    )
    for note in filter(None, (agent.spec.note, agent.algorithm.note)):
        start.say(note)


class _AgreedRun(NamedTuple):
    """The run as rank 0 knows it, which tells the other learners."""

    id: str
    inference: str  # where actions are chosen: "actor" or "learner"
    run: RunOnHost  # its folder on this host


def _agree_on_run(start: Start, config: Config, agent: Agent) -> _AgreedRun:
    """Return what rank 0 knows of the run; other learners may have a --logdir of their own."""
    folder, needs_actors = start.folder, flag_conflicts.why_at_actors(config, agent)
    device, rounds = devices.training_device(), agent.algorithm.rounds
    chosen = auto.inference(config, agent.weights, device, rounds, needs_actors)
    path = str(folder.path) if folder else config.logdir
    own = agent.identity["run_id"], chosen, path, not (folder and folder.has_started())
    run_id, chosen, path_of_first, is_new = start.group.gather(own, "run")[0]
    if folder and chosen.why:
        start.say(f"inference at the {chosen.value}: {chosen.why}")
    return _AgreedRun(run_id, chosen.value, RunOnHost(Path(path or path_of_first), is_new))


def _record_start(start: Start, config: Config, frames: float) -> str:
    """Record this start in the run's folder; return a note for the user, or an empty string."""
    folder = start.folder
    assert folder
    is_new = not folder.has_started()
    try:
        return folder.write_start(config, start.addresses, frames, start.config)
    except OSError as error:
        if is_new:
            flags.refuse(f"--logdir={folder.path}: {error.strerror}")
        return f"this start is not recorded: {error.filename or folder.path}: {error.strerror}"
