"""The seeds of environments: no two environments of a run share one, whoever plays in them.

Each function returns the seed of the first environment of a batch; `make_environments` gives the
others the next numbers. They are called by whatever plays: actors, tests, and the games that are
recorded or measured before a student learns.
"""

_APART = 1_000_003  # between two runs' seeds
_ACTORS_APART = 10_007  # between two actors
_LEARNERS_APART = 1_000  # between two learners, whose teachers play as if in another run
# What keeps the seeds of complete games apart from those of actors, and from each other's.
_TESTS, _RECORDED, _MEASURED = 500_000_000, 600_000_000, 700_000_000


def of_actor(run_seed: int, task: int) -> int:
    """Return the first seed of an actor, which `task` names."""
    return run_seed * _APART + task * _ACTORS_APART


def of_test(run_seed: int) -> int:
    """Return the first seed of the games by which a policy is tested."""
    return run_seed * _APART + _TESTS


def of_recorded(run_seed: int, first_stream: int, learner: int = 0) -> int:
    """Return the first seed of games that are recorded into a data set, one that no game there has.

    `first_stream` is the number of the data set's next stream. Of several learners, each records
    the games of its own teachers.
    """
    return (run_seed + learner * _LEARNERS_APART) * _APART + _RECORDED + first_stream


def of_measured(run_seed: int) -> int:
    """Return the first seed of the games over which a teacher's mean return is measured."""
    return run_seed * _APART + _MEASURED
