"""The checks of a run as a whole: its hosts answer, and its flags and the rows of its CSV fit."""

from collections.abc import Iterable

from impala_mm.transport.rounds import why_too_few, why_unfit
from launcher.checks.check import Finding, PlannedRun, Scope, check, failed, note, passed
from launcher.plan import process_plan
from launcher.plan.workers_csv import first_learners
from launcher.supervise.task import START_VARIABLE

# Seconds that the check of the environments may delay a start. It runs while TensorFlow is loaded.
_CHECK_ENV_SECS = 2


@check("ssh", Scope.RUN)
def check_ssh(run: PlannedRun) -> Iterable[Finding]:
    """Report the hosts that cannot be reached."""
    for host_id, error in run.unreached.items():
        yield failed(error)._replace(host_id=host_id)
    for host in run.reached_hosts:
        if host.host_id:
            yield passed("connected")._replace(host_id=host.host_id)


@check("flags", Scope.RUN)
def check_flags(run: PlannedRun) -> Iterable[Finding]:
    """Check the flags of training by `experiment.py --validate` on the first learner's host."""
    learner = run.learners[0]
    installation = run.installation_of(learner)
    if installation.host_id in run.unreached or installation.missing:
        return
    command = [
        installation.python,
        installation.experiment,
        "--validate",
        f"--check_env_secs={_CHECK_ENV_SECS}",  # a later flag, the user's own, replaces it
        *process_plan.flag_arguments(run.flags),
    ]
    code, printed = run.hosts[installation.host_id].run_program(
        process_plan.with_setup(learner, run.config, command),
        workdir=installation.workdir,
        # As a process of the frontend, it accepts the flags of evaluators.
        environment=run.processes[0].environment | {START_VARIABLE: "check"},
        seconds=120.0,
    )
    if printed.startswith(f"{installation.workdir}: "):  # it does not exist
        return  # the check of versions reports it
    lines = printed.strip().splitlines() or ["no output"]
    tracebacks = [i for i, line in enumerate(lines) if line.startswith("Traceback ")]
    if code == 0:
        yield passed(lines[-1].removeprefix("valid: "))
    elif tracebacks:  # of the code of an environment
        yield failed("\n".join(lines[tracebacks[0] :]), "correct the code at the last line named")
    else:
        yield failed(lines[-1].removeprefix("error: "), "correct the command line")
    yield from (
        note(line.removeprefix("warning: ")) for line in lines if line.startswith("warning: ")
    )


@check("evaluator", Scope.RUN)
def check_evaluators(run: PlannedRun) -> Iterable[Finding]:
    """Note evaluators on another machine than the first learner's, which writes the checkpoints."""
    learners_host_id = run.installation_of(run.learners[0]).host_id
    for worker in run.workers:
        host_id = run.installation_of(worker).host_id
        if worker.job == "evaluator" and host_id != learners_host_id:
            yield note(
                f"the evaluator reads checkpoints, which the learner writes on "
                f"{learners_host_id or 'this machine'}",
                "give its row the first learner's ip, or put --logdir on a file system that both "
                "share",
            )._replace(host_id=host_id)


@check("rounds", Scope.RUN)
def check_rounds(run: PlannedRun) -> Iterable[Finding]:
    """Check that the actors can fill every learner's rounds, if the algorithm plays in rounds.

    --validate has checked the number of environments that the flags give.
    """
    if not run.round_columns:
        return
    actors = [worker for worker in run.workers if worker.job == "actor"]
    for row in actors:
        if row.num_envs and (reason := why_unfit(run.round_columns, row.num_envs)):
            yield failed(f"row {row.line} ({row.ip}), column num_envs: {reason}")
    learners = len(run.learners)
    if reason := why_too_few(learners, sum(row.count for row in actors)):
        remedy = f"give the CSV at least {learners} actors, by more rows or the column count"
        yield failed(reason, remedy)


@check("actors", Scope.RUN)
def check_assignment(run: PlannedRun) -> Iterable[Finding]:
    """Check that each learner has an actor, where the flags let actors stay with their first."""
    stay = {"learner_assignment": "fixed", "inference": "learner"}
    if not any(run.flags.get(name) == value for name, value in stay.items()):
        return
    numbers = {number for _, number in first_learners(run.workers)}
    for number in range(len(run.learners)):
        if numbers and number not in numbers:
            yield failed(
                f"learner {number} has none, and actors stay with their learner, so that all "
                f"learners would wait for ever",
                f"give a row of the CSV learner={number}, or let actors move: "
                f"--learner_assignment=balance, --inference=actor",
            )
