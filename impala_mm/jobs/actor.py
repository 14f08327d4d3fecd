"""An actor's process: acting, from the flags to the exit code."""

import dataclasses
import faulthandler
import functools
import itertools
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from impala_mm.config import auto, flags, user_modules
from impala_mm.config.environment_flags import PAST, RANDOM, SELF, read_opponents
from impala_mm.config.errors import ImpalaError, UserMistake
from impala_mm.config.settings import Config
from impala_mm.data import compression
from impala_mm.runtime import heartbeat, lifecycle, log, machine, ports, run_token, starter
from impala_mm.runtime.heartbeat import Heartbeat

_CRASHED_TWICE = "it crashed twice in the same way before its first unroll"
_ATTEMPTS = 5  # attempts to make the environments, with pauses of 1, 2, 4... s


def run(config: Config) -> NoReturn:
    """Act until the run or the user ends it."""
    say = log.ProcessLogger(f"actor {config.task}")
    stop, ending = threading.Event(), []

    def end(number: int, _: Any) -> None:
        ending.append(number)
        if not stop.is_set():  # a second signal may arrive while the first is handled
            stop.set()

    lifecycle.handle_end_signals(end)
    lifecycle.lower_priority()
    lifecycle.limit_threads_and_memory()
    learners = ports.parse_learner_hosts(config)
    refuse_port_zero(learners)
    start = first_learner(config, len(learners))
    if config.learner_assignment == "fixed":
        learners, start = [learners[start]], 0
    token = run_token.read_token(config)
    threads = config.intra_op_threads or 1, config.inter_op_threads or 1
    lifecycle.load_tensorflow(*threads, config.actor_device)
    if config.deterministic_run:
        lifecycle.use_deterministic_operations()
    from impala_mm.runtime import devices  # noqa: PLC0415

    device = devices.select_device("actor_device", config.actor_device, config.task)
    if config.actor_device == "gpu":
        say(f"acts on {device}")
    alive = heartbeat.of_this_process()
    setup = _ActorSetup(config, learners, start, token, say, stop, alive)
    if config.inference == "auto":
        setup = setup._replace(
            config=dataclasses.replace(config, inference=_ask_learner(setup, "inference", "actor"))
        )
    lifecycle.exit_now(_play(setup, ending))


def _play(setup: "_ActorSetup", ending: list[int]) -> int:
    """Act until a signal in `ending` arrives or the actor fails; return the exit code."""
    from impala_mm.actor.failures import (  # noqa: PLC0415
        NothingPlayed,
        TooManyFaults,
        watch_for_hangs,
    )
    from impala_mm.actor.stepper import DescriptorsClosed  # noqa: PLC0415
    from impala_mm.environments.types import BadLevel  # noqa: PLC0415
    from impala_mm.transport.client import Refused  # noqa: PLC0415

    faulthandler.enable(all_threads=False)  # a crash in compiled code shows the user's lines
    watch_for_hangs(
        setup.heartbeat,
        lambda fault: setup.report(setup.learners[setup.start], fault),
        say=setup.say,
    )
    prepare = _prepare_stepping if setup.config.inference == "learner" else _prepare_with_network
    code, prepared, say = 1, None, setup.say
    try:
        prepared = prepare(setup)
        prepared.run()
        code = lifecycle.exit_code(ending)
        say(f"finished: {lifecycle.end_reason(ending)}")
    except NothingPlayed as error:
        if setup.stop.is_set():
            code = lifecycle.exit_code(ending)
        else:
            say(f"error: {error}")
            setup.give_up(prepared.address() if prepared else setup.learners[setup.start], error)
    except (BadLevel, UserMistake) as error:  # found only when it plays
        user_modules.show_cause(error)
        say(f"error: {error}")
        code = 2
    except (Refused, TooManyFaults) as error:
        say(f"error: {error}")
    except DescriptorsClosed as error:  # nothing can be reported or closed any more
        say(f"error: {error}")
        if not prepared or not prepared.has_delivered():
            setup.note_crash(str(error))
        lifecycle.exit_now(1)
    except Exception as error:
        if prepared and prepared.has_delivered():
            traceback.print_exc()
        else:
            address = prepared.address() if prepared else setup.learners[setup.start]
            setup.report_crash(address, error)
    setup.stop.set()
    if prepared:
        prepared.end()
    return code


class _ActorSetup(NamedTuple):
    """The parts that an actor with a network and one without both need."""

    config: Config
    learners: list[str]  # addresses
    start: int  # index of the learner that it connects to first
    token: str
    say: log.ProcessLogger
    stop: threading.Event
    heartbeat: Heartbeat

    def report(self, address: str, fault: Any, gave_up: str = "") -> None:
        """Report a fault of an environment to the learner at `address`."""
        from impala_mm.actor.failures import report_failure  # noqa: PLC0415

        report_failure(address, self.token, self.config.task, fault, gave_up)

    def give_up(self, address: str, error: Any) -> None:
        """Report to the supervisor and to the learner at `address` why this actor gives up."""
        self.heartbeat.give_up(error.reason)
        self.report(address, error.fault, error.reason)

    def report_crash(self, address: str, error: Exception) -> None:
        """Log a crash before the first unroll, and report it to the learner at `address`."""
        from impala_mm.actor.failures import describe_crash, is_users  # noqa: PLC0415
        from impala_mm.environments.faults import indented  # noqa: PLC0415

        fault = describe_crash(error)
        self.say(f"error: {fault.text}\n{indented(fault)}")
        # What no line of the user's code has raised, such as a network that fails, may pass.
        self.report(address, fault, self.note_crash(fault.kind) if is_users(error) else "")

    def note_crash(self, crash: str) -> str:
        """Report a crash before the first unroll to the supervisor; return why this actor gives up.

        It does if the start before this one crashed alike: a mistake in the user's code is the same
        in each start. Without a supervisor it cannot know that, and nothing starts it again.
        """
        if not self.heartbeat.repeats_crash(crash):
            return ""
        self.heartbeat.give_up(_CRASHED_TWICE)
        return _CRASHED_TWICE


def _ask_learner(setup: _ActorSetup, name: str, default: Any) -> Any:
    """Return the value by this name in the identity of the first learner that answers.

    Return the default if it has none, or if this actor is asked to stop.
    """
    from impala_mm.runtime.timing import Backoff  # noqa: PLC0415
    from impala_mm.transport.client import (  # noqa: PLC0415
        Client,
        OtherRun,
        Refused,
        Unreachable,
    )

    learners = setup.learners
    waiting = Backoff(f"for {ports.in_words(learners)}", setup.say, setup.stop)
    for number in itertools.count(setup.start):
        if setup.stop.is_set():
            break
        try:
            client = Client(learners[number % len(learners)], setup.token)
            return client.hello({"probe": True}).get(name, default)
        except Unreachable as error:
            setup.heartbeat.beat()
            why = str(error) if isinstance(error, OtherRun) else ""
            waiting.pause(0.2, most=5.0, why=why)
        except Refused as error:
            setup.say(f"error: {error}")
            lifecycle.exit_now(1)
    return default


def _ask_task_flags(setup: _ActorSetup, identity: dict[str, Any]) -> dict[str, Any]:
    """Return what `auto` stands for in this run; `identity` has what it would in a new one.

    The learner knows more: a resumed run keeps what its folder has recorded.
    """
    own = dict(identity["follows_task"])
    asks = auto.task_flags(setup.config) != own
    return dict(_ask_learner(setup, "follows_task", own.items())) if asks else own


class _PreparedActor(NamedTuple):
    """An actor that is ready to run."""

    run: Callable[[], None]  # returns after a stop request
    address: Callable[[], str]  # of the learner that it feeds
    has_delivered: Callable[[], bool]  # whether a learner has an unroll of it
    end: Callable[[], None]  # closes connections and environments


def _prepare_with_network(setup: _ActorSetup) -> _PreparedActor:
    """Return an actor that has the network and chooses actions itself."""
    from impala_mm.actor import actor  # noqa: PLC0415
    from impala_mm.actor.learner_link import LearnerLink  # noqa: PLC0415
    from impala_mm.algorithms import agent  # noqa: PLC0415
    from impala_mm.algorithms.interface import Role  # noqa: PLC0415
    from impala_mm.data.trajectory import UnrollCodec  # noqa: PLC0415

    config, say, stop = setup.config, setup.say, setup.stop
    acting = agent.config_for_acting
    made = agent.make_agent(acting(config), config.task, role=Role.ACTOR)
    algorithm, levels = made.algorithm, made.levels
    level = _level_of_task(config, levels)
    spec = levels[level]
    count = auto.num_columns(config, spec)
    rounds = algorithm.rounds
    refuse_many_environments(config, count, UnrollCodec(algorithm.unroll).size, 1)
    sizes = auto.group_sizes(config, count, spec, starter.is_local_run(), rounds)
    groups = _make_groups(setup, spec, sizes)
    # Asked only now, so that mistakes in the flags are found while no learner runs.
    chosen = _ask_task_flags(setup, made.identity)
    if chosen != dict(made.identity["follows_task"]):
        config = auto.adopt(config, chosen)
        made = agent.make_agent(acting(config), config.task, levels, role=Role.ACTOR)
    algorithm, layout = made.algorithm, made.layout
    pull_secs = auto.pull_secs(config.min_pull_secs, layout.size)
    identity = made.identity | {"actor": config.task, "level": level, "groups": sizes}
    pack = compression.COMPRESSORS[auto.compression(config, spec.observation)]
    link = LearnerLink(
        setup.learners,
        setup.start,
        identity,
        setup.token,
        pull_secs=pull_secs,
        columns=count if rounds or config.deterministic_run else 0,
        say=say,
        stop=stop,
        compress=pack,
    )

    @functools.cache
    def load_teachers(settings: Any) -> Any:
        from impala_mm.teachers.load import load_teachers  # noqa: PLC0415

        teachers = load_teachers(settings, made.spec)
        say(f"--teacher={settings.teacher} acts at first")
        return teachers

    def run() -> None:
        actor.run(
            algorithm,
            groups,
            layout,
            link,
            say=say,
            stop=stop,
            heartbeat=setup.heartbeat,
            tell=lambda fault: setup.report(link.address, fault),
            load_teachers=load_teachers,
            opponents=opponents_of(config, spec),
        )

    def end() -> None:
        link.close()
        _close_groups(groups)

    return _PreparedActor(run, lambda: link.address, lambda: link.has_delivered, end)


def opponents_of(config: Config, spec: Any) -> Any:
    """Return the `OpponentSettings` of a level; None if its agents do not take turns."""
    if spec.seats == 1:
        return None
    from impala_mm.actor.opponents import OpponentSettings  # noqa: PLC0415
    from impala_mm.teachers.opponents import load_player  # noqa: PLC0415

    weights = read_opponents(config.opponents)
    if config.env_workers and weights.keys() != {RANDOM}:
        flags.refuse(
            f"--env_workers={config.env_workers}: the opponents of --opponents={config.opponents} "
            f"play in the actor's process: leave it 0, or give --opponents={RANDOM}"
        )
    load = functools.partial(load_player, config=config, spec=spec)
    seed = config.seed + 1000 * config.task
    restore_past = functools.partial(_restore_past, config.logdir)
    return OpponentSettings(
        weights, lambda name, entries: load(name, entries=entries), seed, restore_past
    )


def _restore_past(logdir: str, variables: Any) -> Iterator[int]:
    """Load a run's checkpoints, the oldest first, and yield their updates.

    Where other hosts have the run's folder, there are none.
    """
    from impala_mm.records import checkpoint, saved_variables  # noqa: PLC0415

    by_key = saved_variables.named_for_acting(variables)
    for path in checkpoint.of_run(logdir):
        try:
            updates = checkpoint.verify(path).updates
            saved_variables.load(path, by_key)
        except (ImpalaError, OSError):  # the learner may delete it
            continue
        yield updates


def refuse_many_environments(config: Config, count: int, unroll_bytes: int, actors: int) -> None:
    """Refuse environments whose unrolls do not fit in memory; `actors` have `count` each."""
    of = f" for {actors} actors" if actors > 1 else ""
    machine.refuse_too_many_unrolls(f"--num_envs={count}{of}", count * actors, unroll_bytes)


def _prepare_stepping(setup: _ActorSetup) -> _PreparedActor:
    """Return an actor that only steps environments, while its learner chooses actions."""
    from impala_mm.actor import stepping_actor  # noqa: PLC0415
    from impala_mm.algorithms import agent  # noqa: PLC0415
    from impala_mm.environments import from_flags  # noqa: PLC0415

    config, stop, alive = setup.config, setup.stop, setup.heartbeat
    levels = from_flags.level_specs(config)
    level = _level_of_task(config, levels)
    spec = levels[level]
    try:
        count, observation = auto.num_columns(config, spec), spec.observation
        sizes = stepping_actor.group_sizes(count, observation, spec.masks, spec.agents)
    except ValueError as error:
        flags.refuse(f"--inference=learner: {error}; --inference=actor sends none of them alone")
    groups = _make_groups(setup, spec, sizes)
    if opponents := opponents_of(config, spec):
        _let_play(groups, opponents)
    identity = agent.stepping_identity(config, levels)
    identity |= {"actor": config.task, "level": level, "groups": sizes}
    pack = compression.COMPRESSORS[auto.compression(config, observation)]
    learner = setup.learners[setup.start]
    playing = stepping_actor.SteppingActor(
        learner,
        identity,
        setup.token,
        groups,
        setup.say,
        stop,
        alive,
        pack,
        tell=lambda fault: setup.report(learner, fault),
    )
    return _PreparedActor(
        lambda: stepping_actor.run(playing, stop, alive),
        lambda: learner,
        lambda: playing.has_delivered,
        lambda: _close_groups(groups),
    )


def _make_groups(setup: _ActorSetup, spec: Any, sizes: list[int]) -> list[tuple[Any, int]]:
    """Return this actor's environments in groups of these sizes, as (Environments, size).

    Sizes are numbers of columns.

    If they cannot be made, try again; raise NothingPlayed after `_ATTEMPTS` attempts.
    """
    from impala_mm.actor.failures import NothingPlayed  # noqa: PLC0415
    from impala_mm.environments import from_flags, seeds  # noqa: PLC0415
    from impala_mm.environments.faults import FaultLog, make_fault  # noqa: PLC0415
    from impala_mm.environments.make import make_environments  # noqa: PLC0415
    from impala_mm.environments.types import BadLevel  # noqa: PLC0415
    from impala_mm.environments.worker_vector import WorkerVector  # noqa: PLC0415

    config, address, level = setup.config, setup.learners[setup.start], spec.level_name
    options, seed = from_flags.environment_options(config), seeds.of_actor(config.seed, config.task)
    workers = max(config.env_workers // len(sizes), 1) if config.env_workers else 0
    faults, first = FaultLog(setup.say, lambda fault: setup.report(address, fault)), None
    for attempt in range(_ATTEMPTS):
        groups: list[tuple[Any, int]] = []
        try:
            for size in sizes:
                first_of_group = seed + sum(size for _, size in groups)
                count = size // spec.agents
                made = make_environments(level, count, first_of_group, workers=workers, **options)
                groups.append((made, size))
                if isinstance(made, WorkerVector):
                    setup.say(f"{count} environments step in {made.describe()}")
            return groups
        except BadLevel:
            raise
        except Exception as error:
            _close_groups(groups)
            fault = make_fault(f"an environment of {level} cannot be made", error)
            first = first or fault
            setup.heartbeat.beat()
            if attempt < _ATTEMPTS - 1:
                faults.add(fault, f"trying again in {2**attempt} s")
                if setup.stop.wait(2**attempt):
                    break
    faults.say_counts(now=True)
    assert first
    raise NothingPlayed(
        f"the environments of this actor could not be made in {attempt + 1} attempts", first
    )


def _let_play(groups: list[tuple[Any, int]], opponents: Any) -> None:
    """Let opponents play that are not the run's policies, where this actor has no network."""
    from impala_mm.environments.turns import TurnVector  # noqa: PLC0415

    if own := {SELF, PAST} & opponents.weights.keys():
        flags.refuse(
            f"--opponents names {' and '.join(sorted(own))}, which play in actors that have the "
            f"network: use --inference=actor"
        )
    for number, (environments, _) in enumerate(groups):
        if isinstance(environments, TurnVector):
            environments.let_play(opponents.weights, opponents.load, [opponents.seed, number])


def _close_groups(groups: list[tuple[Any, int]]) -> None:
    for environments, _ in groups:
        environments.close()


def _level_of_task(config: Config, levels: dict[str, Any]) -> str:
    """Return the level of --level_name that this actor plays."""
    return list(levels)[config.task % len(levels)]


def refuse_port_zero(learners: Sequence[str]) -> None:
    """Exit with code 2 if an actor's address has port 0, by which a learner takes a free port."""
    for address in learners:
        if ports.split_address(address)[1] == 0:
            flags.refuse(
                f"--learner_hosts={','.join(learners)}: port 0 lets a learner choose a free port; "
                f'give an actor the port that the learner prints ("listening at ...")'
            )


def first_learner(config: Config, count: int) -> int:
    """Return which of `count` learners the actor connects to first, counted from 0."""
    if config.learner >= count:
        flags.refuse(f"--learner={config.learner}: --learner_hosts names {count}, counted from 0")
    return config.learner if config.learner >= 0 else config.task % count
