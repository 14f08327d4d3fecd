"""The job of --validate: checks the flags, prints what they would start, and starts nothing.

It checks all that any machine with this package can check: names, contradictions, whether the
network fits the levels, what the algorithm's functions return, which it traces and does not
execute, and the contents of --logdir and --checkpoint. It does not check what only the machine of
the run knows: free ports, GPUs, Horovod, and whether other machines answer.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from impala_mm.config import auto, flags, setting_files, user_modules
from impala_mm.config.environment_flags import PAST, RANDOM, SELF
from impala_mm.config.settings import Config
from impala_mm.jobs import (
    actor,
    before_start,
    evaluate,
    evaluator,
    export,
    learner,
    local_run,
    record,
)
from impala_mm.learner import flag_conflicts
from impala_mm.records import checkpoint
from impala_mm.runtime import lifecycle, ports, starter

if TYPE_CHECKING:
    from impala_mm.algorithms.agent import Agent
    from impala_mm.algorithms.interface import Algorithm
    from impala_mm.data.trajectory import Batch


def run(config: Config, given: Sequence[str]) -> NoReturn:
    """Print what the flags would start, and exit; `given` names the flags on the command line."""
    if config.mode == "rehearsal":
        said = f"a rehearsal of {config.updates} updates"
    elif config.mode in {"test", "record", "export"} or config.job_name == "evaluator":
        said = _check_playing(config, given)
    else:
        said = _check_training(config)
    origins = json.loads(config.origins or "{}")
    if set(origins) - {setting_files.COMMAND_LINE}:
        default = type(config)()
        for source, names in origins.items():
            changed = flags.changed(default, config, names)  # without flags of the frontend
            print(f"from {source}: {' '.join(flags.arguments(config, changed))}")
    print(f"valid: {said}")
    sys.exit(0)


def _check_training(config: Config) -> str:
    """Check the flags of an actor, of learners, or of both; return what they would start."""
    if config.debug:
        config = learner.for_debugging(config)
    learners = 1 if config.job_name else config.num_learners
    flag_conflicts.refuse_before_loading(config, learners)
    several = learners > 1
    hosts = (
        local_run.local_learner_addresses(config) if several else ports.parse_learner_hosts(config)
    )
    if config.job_name == "actor":
        actor.refuse_port_zero(hosts)
    if config.job_name != "learner":
        actor.first_learner(config, len(hosts))
    if config.job_name != "actor":
        learner.refuse_missing(config)
        _refuse_unwritable(config.logdir)
    before_start.warn_of_slow(config, learners)
    check = before_start.start(config, config.check_env_secs)
    lifecycle.load_tensorflow(1, 1, "cpu")
    before_start.refuse_broken(check)
    from impala_mm.algorithms import agent  # noqa: PLC0415
    from impala_mm.algorithms.interface import Role  # noqa: PLC0415
    from impala_mm.algorithms.parts import networks  # noqa: PLC0415
    from impala_mm.environments import from_flags  # noqa: PLC0415
    from impala_mm.learner import resume  # noqa: PLC0415
    from impala_mm.policy.policy import load_policy  # noqa: PLC0415

    levels = from_flags.level_specs(config)
    spec = next(iter(levels.values()))
    config = auto.for_task(config, spec, resume.recorded_flags(config, config.logdir))
    if config.job_name == "actor":
        made = agent.make_agent(config, 0, levels, Role.ACTOR)
    else:
        made = agent.make_agent(config, 0, levels, load_policy=load_policy)
    if config.job_name != "actor":
        actors, is_local = 0 if config.job_name else auto.num_actors(config), not config.job_name
        flag_conflicts.refuse_for_algorithm(config, made, learners, learners, actors, is_local)
    if config.job_name != "learner":
        _refuse_many_environments(config, made)
        _check_opponents(config, made)
    spaces = from_flags.describe_spaces(made.spec)
    name = made.made_of["--agent_name"]
    network = "a network of its own" if name == "auto" else networks.describe(config, name)
    begins = ""
    if config.job_name != "actor":
        begins = _check_weights(config, made)
        _check_teachers(config, made)
        _check_data(config, made)
    begins += _check_functions(config, made)
    return (
        f"{' and '.join(made.levels)}, {config.algorithm}, {network}, "
        f"{made.weights:,} weights, observations {spaces['observations']}, "
        f"{from_flags.in_words(spaces['actions'])}{begins}"
    )


def _refuse_many_environments(config: Config, made: "Agent") -> None:
    """Refuse numbers of environments and of their groups that cannot work, as actors do."""
    from impala_mm.data.trajectory import UnrollCodec  # noqa: PLC0415

    unroll_bytes = UnrollCodec(made.algorithm.unroll).size
    count = auto.num_columns(config, made.spec)
    actors = 1 if config.job_name else auto.num_actors(config)
    actor.refuse_many_environments(config, count, unroll_bytes, actors)
    auto.group_sizes(config, count, made.spec, False, made.algorithm.rounds)


def _check_opponents(config: Config, made: "Agent") -> None:
    """Refuse opponents that actors would refuse.

    The frontend lets the first learner's host check the flags, where their files need not be.
    """
    settings = actor.opponents_of(config, made.spec)
    has_actors = config.job_name or auto.num_actors(config)
    if settings and has_actors and not starter.start_id():
        for name in settings.weights.keys() - {PAST, RANDOM, SELF}:
            settings.load(name, 1)


def _check_functions(config: Config, made: "Agent") -> str:
    """Trace the algorithm's functions; refuse what they do wrong, and return what was left out."""
    from impala_mm.actor.acting import Act  # noqa: PLC0415
    from impala_mm.algorithms import agent, contract  # noqa: PLC0415
    from impala_mm.algorithms.interface import Role  # noqa: PLC0415
    from impala_mm.distributed.group import SingleLearner  # noqa: PLC0415
    from impala_mm.learner.train_step import NothingCompiled, TrainStep  # noqa: PLC0415

    try:
        own = agent.config_for_acting(config)
        acting = agent.make_agent(own, 0, made.levels, Role.ACTOR)
        Act(acting.algorithm, auto.num_columns(config, made.spec))
        if config.job_name == "actor":
            return ""
        contract.trace_judges(agent.make_agent(own, 0, made.levels, Role.EVALUATOR).algorithm)
        alone, values = SingleLearner(), made.layout.values
        likes = _batches_like(config, made.algorithm)
        for method, batch in likes:
            TrainStep(made.algorithm, alone, config, values, method=method).trace(batch)
    except (contract.AlgorithmMistake, NothingCompiled) as error:
        user_modules.show_cause(error)
        flags.refuse(str(error))
    if likes:
        return ""
    return (
        "; update was not traced, since the algorithm has a source of its own and no batch_shape "
        "= (entries, columns) of its batches"
    )


def _batches_like(config: Any, algorithm: "Algorithm") -> "list[tuple[str, Batch]]":
    """Return the algorithm's updates by name, with the specs of their batches; none if unknown."""
    from impala_mm.algorithms import feature_settings  # noqa: PLC0415
    from impala_mm.algorithms.interface import defines  # noqa: PLC0415
    from impala_mm.data import batches  # noqa: PLC0415

    unroll, share = algorithm.unroll, getattr(config, "teacher_data_share", 0)
    entries, columns = None, config.batch_size
    if defines(algorithm.source) and not config.replay:
        entries, columns = algorithm.batch_shape or (None, 0)
    if not columns:
        return []
    beside = 0
    if share:
        part = algorithm.minibatch_columns or columns
        beside = columns // part * feature_settings.columns_beside(part, share)
    likes = [("update", batches.specs(unroll, columns + beside, entries))]
    if defines(algorithm.offline_update):
        likes.append(("offline_update", batches.specs(unroll, columns, entries)))
    return likes


def _check_weights(config: Config, made: "Agent") -> str:
    """Return with which weights training would start; refuse weights that do not fit."""
    from impala_mm.learner import resume  # noqa: PLC0415
    from impala_mm.learner.learner import RunLimits  # noqa: PLC0415
    from impala_mm.records import saved_variables  # noqa: PLC0415

    variables = made.algorithm.variables
    if checkpoint.of_run(config.logdir):
        path, about = checkpoint.find(config.logdir)
        resume.check_resumable(about, made.made_of, config.logdir)
        resume.check_teacher(about, config, config.logdir)
        try:
            saved_variables.load(path, saved_variables.named(variables))
        except checkpoint.Mismatch as error:
            raise resume.with_changes(error, about, config) from None
        threshold = made.spec.reward_threshold if len(made.levels) == 1 else None
        if over := resume.why_finished(about, RunLimits(config, threshold)):
            return f"; the run in {config.logdir} is finished: {over}"
        return f"; resumes from the {about.frames:,.0f} frames in {config.logdir}"
    if config.mode == "train_from":
        path, about = resume.start_from(config, variables, made.made_of)
        return f"; training starts with the weights of {path} ({about.frames:,.0f} frames)"
    return ""


def _check_teachers(config: Any, made: "Agent") -> None:
    """Refuse teachers that the learners would refuse, and give the others to the algorithm.

    A run whose checkpoint needs none has none. The weights of a run that would be resumed must be
    loaded.
    """
    from impala_mm.algorithms.features.guide import Guidance  # noqa: PLC0415
    from impala_mm.algorithms.features.teacher import Distillation  # noqa: PLC0415
    from impala_mm.teachers.load import load_teachers  # noqa: PLC0415

    features = made.algorithm.features
    distillation, guidance = features.get(Distillation), features.get(Guidance)
    asks = distillation and not distillation.is_over()
    # With --teacher_cost=0 it may still have to play the games that its student learns from.
    plays = config.uses_recorded_games and not getattr(config, "teacher_data", "")
    plays = plays and not (config.logdir and (Path(config.logdir) / "teacher_data").exists())
    evaluates = config.mode == "reincarnate"
    evaluates = evaluates and not (config.logdir and (Path(config.logdir) / "checkpoints").exists())
    if not (asks or plays or evaluates or (guidance and float(guidance.share))):
        return
    teachers: list[Any] = load_teachers(config, made.spec)
    for teacher in teachers:
        for note in teacher.notes:
            flags.warn(note)
    if distillation:
        distillation.begin(teachers, made.spec.frame_stack)


def _check_data(config: Config, made: "Agent") -> None:
    """Refuse recorded games that the learners would refuse."""
    from impala_mm.evaluation.recording import describe  # noqa: PLC0415
    from impala_mm.learner import phases  # noqa: PLC0415
    from impala_mm.replay.data_set import BadData  # noqa: PLC0415

    if not config.uses_recorded_games:
        return
    if getattr(config, "teacher_data_share", 0):
        phases.share_beside(made.algorithm, config)
    data = phases.find(made, config, Path(), 0, describe)
    if data.is_own:
        return
    try:
        phases.read(made, data, flags.warn)
    except BadData as error:
        flags.refuse(f"--teacher_data: {error}")


def _check_playing(config: Config, given: Sequence[str]) -> str:
    """Check the flags of a test, an evaluator or an export; return what they would start."""
    if config.mode == "test":
        evaluate.refuse_bad_flags(config)
    elif config.mode == "record":
        record.refuse_bad_flags(config)
    elif config.mode == "export":
        export.export_folder(config)
    else:
        evaluator.refuse_bad_flags(config)
    lifecycle.load_tensorflow(1, 1, "cpu")
    from impala_mm.evaluation.games import changed_flags, choose_levels  # noqa: PLC0415
    from impala_mm.policy.core import PolicyCore  # noqa: PLC0415

    try:
        path, about = checkpoint.find(config.checkpoint or config.logdir)
        if config.mode == "export":
            levels = list(PolicyCore(path, about).levels)
        else:
            levels = choose_levels(config, given, about, lambda message: None)
            PolicyCore(path, about, levels[0], **changed_flags(config, given))
    except checkpoint.Missing as error:
        if config.job_name == "evaluator":
            return f"{error}: an evaluator waits for the first checkpoint"
        raise
    return f"{' and '.join(levels)}, with {path} ({about.frames:,.0f} frames)"


def _refuse_unwritable(logdir: str) -> None:
    """Refuse a folder that cannot be written, or cannot be created in the nearest one above."""
    logdir = logdir or "runs"
    path = Path(logdir).absolute()
    try:
        while not path.exists():
            path = path.parent
        if not path.is_dir():
            flags.refuse(f"--logdir={logdir}: {path} is not a folder")
        if not os.access(path, os.W_OK | os.X_OK):
            flags.refuse(f"--logdir={logdir}: {path} cannot be written to")
    except OSError as error:
        flags.refuse(f"--logdir={logdir}: {error.strerror}")
