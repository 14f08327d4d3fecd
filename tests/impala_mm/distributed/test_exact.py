"""N learners under real launchers take the same gradients and steps as one large learner.

Each rank writes what it averaged, clipped and ended with to a file (`tests/helpers/ranks.py`); one
learner in the test's own process, which has the whole batch, is the reference.
"""

import functools
import sys

import numpy as np
import pytest
from processes import ROOT, needs_horovod, run
from ranks import NETWORKS, learn_case

from impala_mm.distributed.group import SingleLearner

pytestmark = [needs_horovod, pytest.mark.timeout(400)]
MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", 1)
LAUNCHERS = {
    "2": (*MPIRUN, "-np", 2),
    "4": (*MPIRUN, "-np", 4),
    "gloo": ("horovodrun", "--gloo", "-np", 2),
}
SIZES = {"2": 2, "4": 4, "gloo": 2}
# Cases that one start of a launcher runs. Four ranks, Gloo, the LSTM and FURTHER are in
# `make test-slow`: a start takes 10 s to 20 s.
FURTHER = ("ppo-long", "long", "ppo-longer", "sum", "grouped", "halves")
OF_SEVERAL = ("mean", "talk"), FURTHER
SEVERAL = ("2", *(pytest.param(name, marks=pytest.mark.slow) for name in ("4", "gloo")))
EACH = [("2", NETWORKS[0]), pytest.param("gloo", NETWORKS[1], marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a function that returns the folder of a case's files, and runs it if it has not."""
    ran = {}

    def folder(launcher, case, network=NETWORKS[0]):
        (cases,) = (group for group in OF_SEVERAL if case in group)
        key = launcher, network, cases
        if key not in ran:
            ran[key] = tmp_path_factory.mktemp(f"{launcher}-{network}")
            program = ROOT / "tests" / "helpers" / "ranks.py"
            command = (*LAUNCHERS[launcher], sys.executable, program, ran[key], network, *cases)
            code, printed = run(*command, limit=300, PYTHONPATH=str(ROOT))
            assert code == 0, printed
        return ran[key]

    return folder


@pytest.fixture
def files(folders):
    """Return a function of (launcher, case, network) that returns each rank's arrays by name."""

    def of(launcher, case, network=NETWORKS[0]):
        folder = folders(launcher, case, network)
        return [dict(np.load(folder / f"{case}-{rank}.npz")) for rank in range(SIZES[launcher])]

    return of


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function of (case, network) that returns the arrays of one learner by name."""

    @functools.cache
    def of(case, network=NETWORKS[0]):
        folder = tmp_path_factory.mktemp(f"1-{network}")
        learn_case(SingleLearner(), folder, network, case)
        return dict(np.load(folder / f"{case}-0.npz"))

    return of


def _of(arrays, kind):
    return [value for name, value in sorted(arrays.items()) if name.startswith(kind)]


def _norm(arrays):
    return np.sqrt(sum((np.asarray(a, np.float64) ** 2).sum() for a in arrays))


def _assert_near(ours, theirs, tolerance=1e-5):
    """Assert that the arrays together differ by at most `tolerance` of their norm."""
    assert len(ours) == len(theirs) > 0
    difference = [np.float64(a) - np.float64(b) for a, b in zip(ours, theirs, strict=True)]
    assert _norm(theirs) > 0
    assert _norm(difference) <= tolerance * _norm(theirs)


@pytest.mark.parametrize(("launcher", "network"), EACH)
def test_with_mean_n_learners_are_one(files, alone, launcher, network):
    """Compare the averaged gradient before and after clipping, and the variables after training."""
    one = alone("mean", network)
    for rank in files(launcher, "mean", network):
        for kind in ("before", "after", "variable"):
            _assert_near(_of(rank, kind), _of(one, kind))
    assert _norm(_of(one, "after")) < 0.9 * _norm(_of(one, "before")), "it was clipped"


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["2", "4"])
def test_with_sum_n_learners_have_an_nth_of_the_gradient(files, alone, launcher):
    """Clipped, it is an Nth of one learner's with N times the threshold.

    The steps are those of one learner whose gradient is divided by N.
    """
    n = SIZES[launcher]
    one, wider, divided = (alone(case) for case in ("sum", f"sum-clip{n}", f"sum-divided{n}"))
    for rank in files(launcher, "sum"):
        _assert_near([n * g for g in _of(rank, "before")], _of(one, "before"))
        _assert_near([n * g for g in _of(rank, "after")], _of(wider, "after"))
        _assert_near(_of(rank, "variable"), _of(divided, "variable"))


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["4", "gloo"])
def test_gradients_sent_together_are_the_same_and_as_float16_rounded_and_equal_on_all(
    files, alone, launcher
):
    """float16 has 11 bits, so it rounds to 0.05%, twice here."""
    for each, grouped in zip(files(launcher, "mean"), files(launcher, "grouped"), strict=True):
        _assert_near(_of(each, "before"), _of(grouped, "before"), 1e-6)
    one = alone("mean")
    first, *others = files(launcher, "halves")
    _assert_near(_of(first, "before"), _of(one, "before"), 2e-3)
    with pytest.raises(AssertionError):
        _assert_near(_of(first, "before"), _of(one, "before"), 1e-5)
    for other in others:
        for ours, theirs in zip(_of(first, "before"), _of(other, "before"), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow  # `with mean` compares the variables after ten updates
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("case", FURTHER[:3])
def test_after_many_steps_all_ranks_hold_the_same_bits(files, launcher, case):
    first, *others = files(launcher, case)
    for other in others:
        assert first.keys() == other.keys()
        for name, value in first.items():
            np.testing.assert_array_equal(value, other[name])


@pytest.mark.parametrize("launcher", SEVERAL)
def test_gathers_of_different_names_are_never_matched(folders, launcher):
    for rank in range(SIZES[launcher]):
        assert (folders(launcher, "talk") / f"talk-{rank}").read_text() == "[]"
