"""Two learners under mpirun average in inner graphs and loops, and are one learner with both parts.

Each rank writes what came of every case of `tests/helpers/exchanging.py`.
"""

import json
import math
import sys

import numpy as np
import pytest
from exchanging import WAYS
from processes import ROOT, needs_horovod, run

pytestmark = [needs_horovod, pytest.mark.slow]
MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", 1)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what came of each case: of one learner, and of two by rank."""

    def of(size):
        folder = tmp_path_factory.mktemp(str(size))
        program = (sys.executable, ROOT / "tests" / "helpers" / "exchanging.py", folder)
        code, printed = run(*MPIRUN, "-np", size, *program, limit=200, PYTHONPATH=str(ROOT))
        assert code == 0, printed
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]

    return of(1)[0], of(2)


CASES = ["cond", "loop", "function", "optimizers", *(f"minibatches-{way}" for way in WAYS)]


@pytest.mark.parametrize("case", CASES)
def test_two_learners_are_one(found, case):
    """With minibatches, one whose minibatches join theirs; float16 rounds to 0.05%."""
    one, two = found
    tolerance = 2e-3 if case.endswith(("halves", "all")) else 1e-4
    assert two[0][case]["variables"] == two[1][case]["variables"]
    assert not np.allclose(one[case]["variables"][:3], [1, 2, 3], rtol=1e-3)
    np.testing.assert_allclose(two[0][case]["variables"], one[case]["variables"], rtol=tolerance)
    for rank in two:
        ours, theirs = rank[case]["metrics"], one[case]["metrics"]
        assert ours == pytest.approx(theirs, rel=10 * tolerance)
        assert ours["grad_norm"] > 0.3, "it was clipped"
        assert ours["clipped_share"] == 1


def test_only_gradients_are_sent_as_float16_and_loops_of_means_do_not_overtake_each_other(found):
    for learner in (found[0], *found[1]):
        metrics = learner["means"]["metrics"]
        assert metrics["count"] == 50
        assert metrics["whole"] == 2
        assert metrics["large"] == pytest.approx(1e5)


def test_a_step_that_is_not_finite_on_one_learner_ends_the_updates_of_all_there(found):
    """Step 9 is the third of the second update; an update that begins with it applies nothing."""
    one, two = found
    for learner, where in ((one, ""), *((each, " on learner 1") for each in two)):
        begin = f"update 2 is not finite{where} (grad_norm = nan"
        assert learner["bad"]["error"].startswith(begin)
        assert "its steps from there on were not applied" in learner["bad"]["error"]
        assert "; it was not applied" in learner["before"]["error"]
        assert math.isfinite(sum(learner["bad"]["variables"]))
        for case in ("bad", "before"):
            assert learner[case]["variables"] == pytest.approx(one[case]["variables"], rel=1e-4)
        assert learner["bad"]["variables"] != learner["before"]["variables"]


def test_learners_stop_after_the_step_in_which_the_mean_is_above_the_limit(found):
    """In the second update, which begins after 4 steps of the first, that is its first one."""
    one, two = found
    assert one["stopping"]["metrics"]["steps"] == 1
    for learner in two:
        assert learner["stopping"]["metrics"]["steps"] == 1
    assert two[0]["stopping"]["variables"] == two[1]["stopping"]["variables"]
