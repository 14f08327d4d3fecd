"""The rehearsal, for real: one learner, two under mpirun, two under horovodrun --gloo."""

import re
import sys

import pytest
from processes import ROOT, needs_horovod, run

MPIRUN = ("mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", 1, "-np", 2)
REHEARSE = (sys.executable, ROOT / "experiment.py", "--mode=rehearsal", "--updates=60")


def _losses(printed):
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)  grad_norm", printed)]


def test_one_learner_learns_without_mpi():
    code, printed = run(*REHEARSE)
    assert code == 0, printed
    assert "the one learner learnt" in printed
    losses = _losses(printed)
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize("launcher", [MPIRUN, ("horovodrun", "--gloo", "-np", 2)])
def test_two_learners_hold_equal_variables(launcher):
    code, printed = run(*launcher, *REHEARSE)
    assert code == 0, printed
    assert "all 2 learners learnt" in printed
    assert "and hold equal variables" in printed
    digests = re.search(r"digests of variables and optimizer: (\w+) (\w+)$", printed, re.M)
    assert digests[1] == digests[2]
    assert printed.count("update    1") == 1, "rank 0 alone reports"


@pytest.mark.slow
@needs_horovod
def test_learners_whose_variables_differ_are_found_out():
    """The same program with an all-reduce that does nothing: the comparison must notice."""
    program = (
        "import sys; from impala_mm.config.settings import Config\n"
        "from impala_mm.distributed import group; from impala_mm.learner import rehearsal\n"
        "group.HorovodGroup.mean = lambda self, tensors, name, **how: list(tensors)\n"
        "settings = Config(updates=3)\n"
        "sys.exit(rehearsal.rehearse(settings, group.join_group(settings)))"
    )
    code, printed = run(*MPIRUN, sys.executable, "-c", program)
    assert code != 0
    assert "the learners' variables differ: their all-reduce does not work correctly" in printed
