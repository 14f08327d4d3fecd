"""An example of a user's own format of exports: the arrays of a policy in a file of NumPy's.

`own_names.py` gives it its name; sandbox/export_and_video.md explains it.
"""

from pathlib import Path

import numpy as np

from impala_mm.policy.policy import PolicyCore


def write_arrays(policy: PolicyCore, folder: Path) -> None:
    """Write the policy's variables to an empty folder, numbered."""
    arrays = [each.numpy() for each in policy.algorithm.variables.acting]
    np.savez(folder / "weights.npz", *arrays)
