"""Construction of a learner from its flags: first its levels and device, then all its parts.

`jobs.learner` imports this once TensorFlow is loaded, and runs the learner that it returns.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from impala_mm.algorithms import flag_reads, registry
from impala_mm.algorithms.agent import Agent, make_agent
from impala_mm.algorithms.contract import AlgorithmMistake
from impala_mm.config import auto, flags
from impala_mm.config.settings import Config, UpdateThreads
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.distributed import agreement, consistency
from impala_mm.distributed.group import LearnerGroup
from impala_mm.environments import from_flags
from impala_mm.environments.types import EnvironmentSpec
from impala_mm.learner import flag_conflicts, phases, resume, serving
from impala_mm.learner.batch_source import Turns
from impala_mm.learner.checkpointing import Checkpointing
from impala_mm.learner.learner import Learner, RunLimits
from impala_mm.learner.learner_reports import SilentLearners
from impala_mm.learner.monitor import LearnerMonitor, Records
from impala_mm.learner.own_state import OwnState
from impala_mm.learner.replay_source import Position, Run
from impala_mm.learner.run_status import RunStatus
from impala_mm.learner.sources import Sources, make_sources
from impala_mm.learner.train_step import NotFinite, NothingCompiled, UpdateProfiler
from impala_mm.learner.watching import NoUnrollComes
from impala_mm.records import checkpoint
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.outputs import RunOutputs
from impala_mm.records.run_checkpoints import Checkpoints
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime import devices, lifecycle, ports, provenance, run_token, starter
from impala_mm.runtime.log import Say
from impala_mm.runtime.rank import process_rank
from impala_mm.transport.server import Server

# Exceptions that all learners of a run raise at the same point.
FAILURES = (
    agreement.SettingsDiffer,
    checkpoint.Mismatch,
    AlgorithmMistake,
    NotFinite,
    consistency.VariablesDiffer,
    NothingCompiled,
    NoUnrollComes,
    phases.UnfitTeacher,
)


def find_levels_and_device(config: Config) -> tuple[dict[str, EnvironmentSpec], str]:
    """Set the numbers of threads and the device; return the levels, and the device in words.

    TensorFlow must not have computed anything before.
    """
    if config.deterministic_run:
        lifecycle.use_deterministic_operations()
    here, cores = process_rank(), len(os.sched_getaffinity(0))
    share = max(1, cores // here.local_size) if here.local_size > 1 else 0
    lifecycle.set_thread_counts(config.intra_op_threads or share, config.inter_op_threads or 2)
    device = devices.find_device("device", config.device, here.local_rank)
    levels = from_flags.level_specs(config)
    spec, gpu = next(iter(levels.values())), bool(tf.config.get_visible_devices("GPU"))
    if auto.needs_one_thread(config, spec.observation, gpu, config.algorithm in registry.BUILT_IN):
        # TensorFlow refuses if a level has already computed with it.
        with contextlib.suppress(RuntimeError):
            threads = config.update_threads if here.size == 1 else UpdateThreads()
            lifecycle.set_thread_counts(threads.within, threads.at_once)
            device = "one CPU core, since observations are small"
            if threads.cores > 1:
                device = "two CPU cores, since products of matrices are large"
    devices.start_devices()
    return levels, device


class Start(NamedTuple):
    """The things that a learner's process has before its learner is built."""

    config: Config  # the flags as they were given
    levels: dict[str, EnvironmentSpec]  # by name
    group: LearnerGroup
    addresses: list[str]  # of all learners, in the order of ranks
    held: ports.HeldAddress  # where this one listens
    folder: RunFolder | None  # the run's, of rank 0
    began: float  # time.monotonic() of the process
    outputs: RunOutputs
    tools: phases.PolicyTools
    played: Turns | None = None  # of environments in this process, with --debug

    @property
    def say(self) -> Say:
        """What prints a line."""
        return self.outputs.say


def build_learner(start: Start) -> tuple[LearnerMonitor, Learner]:
    """Return a learner that accepts actors and has its initial variables, and its monitor."""
    say, group = start.say, start.group
    config = _for_task(start)
    agent = make_agent(config, group.rank, start.levels, load_policy=start.tools.load_policy)
    compared = {name: value for name, value in agent.identity.items() if name != "run_id"}
    agreement.check_equal(group.gather(compared, "identity"))
    here, actors = process_rank(), starter.num_actors() or 0
    flag_conflicts.refuse_for_algorithm(
        config, agent, group.size, here.local_size, actors, starter.is_local_run()
    )
    capacity = serving.queue_capacity(config, agent)
    if start.folder:
        _describe(config, start.config, agent, group.size, capacity, say)
    agreed = _agree_on_run(config, agent, group, start.folder, say)
    token = run_token.read_token(config)  # its own file: `Agreement` has found that all are equal
    changed = {
        "run_id": agreed.id,
        "learners": start.addresses,
        "inference": agreed.inference,
    }
    server = serving.listen(
        config,
        agent,
        serving.Place(start.addresses[group.rank], start.held, token),
        agent.identity | changed,
        capacity,
        start.began,
        say,
    )
    server.actors.rank = group.rank
    limits = RunLimits(config, agent.spec.reward_threshold if len(agent.levels) == 1 else None)
    learner, sources = _make_learner(start, config, agent, server, limits, agreed.run)
    silent = SilentLearners(start.addresses, group.rank, token)
    status = RunStatus(learner, agent.levels, say, silent)
    records = _make_records(start, agent, status)
    monitor = LearnerMonitor(
        status, records, lambda: flag_reads.note_unread(start.config, agent.flags_read)
    )
    is_new = not monitor.resume()
    if not monitor.finished:
        student = phases.Student(agent, config, group, agreed.run.folder, start.tools, say)
        teachers = student.begin_teachers(is_new)
        if records and teachers:
            _record_teachers(teachers, status, records)
        if sources.phased:
            student.begin_data(sources.phased, learner.offline_left, learner.updates)
    if start.folder:
        _record_start(start.folder, config, start.config, start.addresses, learner.frames, say)
    return monitor, learner


def _make_learner(
    start: Start, config: Config, agent: Agent, server: Server, limits: RunLimits, run: Run
) -> tuple[Learner, Sources]:
    """Return the learner and the sources of its batches."""
    algorithm, group, folder = agent.algorithm, start.group, start.folder
    position = Position(lambda: learner.updates, lambda: learner.frames / limits.frames)
    sources = make_sources(config, algorithm, server, position, run, start.say, start.played)
    profiled, logdir = (config.profile, folder.path) if folder else ("", Path())
    local = algorithm.variables.local
    learner = Learner(
        config,
        algorithm,
        group,
        sources.read,
        server,
        agent.layout,
        limits,
        agent.spec.action_repeats,
        UpdateProfiler(profiled, logdir, start.say),
        OwnState(run.folder, group.rank, group.size, sources.saved, local, start.say),
    )
    return learner, sources


def _describe(
    config: Config, given: Config, agent: Agent, learners: int, capacity: int, say: Say
) -> None:
    """Print what is trained, and the notes of the levels, the algorithm and the flags given."""
    of = f" on {learners} learners" if learners > 1 else ""
    megabytes = capacity * UnrollCodec(agent.algorithm.unroll).size / 1e6
    precision = devices.resolve_precision(config.precision, agent.spec.observation)
    say(
        f"{' and '.join(agent.levels)}, {config.algorithm} with {agent.weights:,} weights{of}, in "
        f"{precision}; the queue has room for {capacity} unrolls ({megabytes:.1f} MB)"
    )
    for note in filter(None, (agent.spec.note, agent.algorithm.note)):
        say(note)


class _AgreedRun(NamedTuple):
    """The run as rank 0 knows it, which tells the other learners."""

    id: str
    inference: str  # where actions are chosen: "actor" or "learner"
    run: Run  # its folder on this host


def _agree_on_run(
    config: Config, agent: Agent, group: LearnerGroup, folder: RunFolder | None, say: Say
) -> _AgreedRun:
    """Return what rank 0 knows of the run; other learners may have a --logdir of their own."""
    rounds = agent.algorithm.rounds
    needs_actors = agent.algorithm.features.needs_actors
    if needs_actors and config.inference == "learner":
        flags.refuse(f"--inference=learner: {needs_actors}: use --inference=actor")
    device = devices.training_device()
    chosen = auto.inference(config, agent.weights, device, rounds, needs_actors)
    path = str(folder.path) if folder else config.logdir
    own = agent.identity["run_id"], chosen, path, not (folder and folder.has_started())
    run_id, chosen, path_of_first, is_new = group.gather(own, "run")[0]
    if folder and chosen.why:
        say(f"inference at the {chosen.value}: {chosen.why}")
    return _AgreedRun(run_id, chosen.value, Run(Path(path or path_of_first), is_new))


def _record_teachers(measured: dict[str, float], status: RunStatus, records: Records) -> None:
    """Write the teachers' mean returns to the records."""
    learner, seconds = status.learner, round(status.seconds, 3)
    counts = {"frames": learner.frames, "steps": learner.steps, "updates": learner.updates}
    records.metrics_writer.write(counts | {"seconds": seconds} | measured)
    # A replay that was reloaded is in no checkpoint before the learners save their own states:
    # until then the run begins anew.
    if not (learner.updates or status.config.reload_replay):
        records.checkpointing.save_start()


def _record_start(
    folder: RunFolder,
    config: Config,
    given: Config,
    addresses: list[str],
    frames: float,
    say: Say,
) -> None:
    is_new = not folder.has_started()
    try:
        kept = folder.write_start(config, addresses, frames, given)
    except OSError as error:
        if is_new:
            flags.refuse(f"--logdir={folder.path}: {error.strerror}")
        kept = f"this start is not recorded: {error.filename or folder.path}: {error.strerror}"
    if kept:
        say(kept)


def _make_records(start: Start, agent: Agent, status: RunStatus) -> Records | None:
    """Return rank 0's records of the run in its folder; None on the other learners."""
    folder, outputs, say, config = start.folder, start.outputs, start.say, status.config
    if not folder:
        return None
    variables, most = agent.algorithm.variables, config.checkpoint_max_gb * 1e9
    checkpoints = Checkpoints(folder.path, variables, config.keep_checkpoints, most, say)
    about = checkpoint.CheckpointInfo(
        start.group.size, dataclasses.asdict(config), agent.made_of, provenance.versions()
    )
    checkpointing = Checkpointing(status, checkpoints, about, outputs.event_hook)
    return Records(MetricsWriter(folder.path, say, outputs.tracked), checkpointing, outputs, folder)


def _for_task(start: Start) -> Config:
    """Return the config with what `auto` stands for in the flags that follow the environment.

    A run that was started before keeps what its folder has recorded.
    """
    config, folder, say = start.config, start.folder, start.say
    spec = next(iter(start.levels.values()))
    recorded = resume.recorded_flags(config, str(folder.path)) if folder else None
    new, known = auto.for_task(config, spec), auto.for_task(config, spec, recorded)
    adopted = auto.adopt(config, start.group.gather(auto.task_flags(known), "task")[0])
    if folder:
        names, about = list(auto.task_flags(config)), flags.infos(config)
        kept, chosen = (flags.changed(each, known, names) for each in (new, config))
        if kept:
            say(f"{', '.join(flags.arguments(known, kept))}, which this run has recorded")
        elif spec.emulator and (of_games := [n for n in chosen if about[n].of_games]):
            say(f"a game of Atari: {' '.join(flags.arguments(known, of_games))}")
        elif spec.actions.has_box and (of_box := [n for n in chosen if not about[n].of_games]):
            say(f"actions are numbers (Box): {' '.join(flags.arguments(known, of_box))}")
    return adopted
