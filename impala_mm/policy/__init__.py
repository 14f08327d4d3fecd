"""A trained policy: loaded from a checkpoint, called from Python, saved as a SavedModel.

`impala_mm.load_policy`, evaluation and export call it; `register` adds a format of exports.
The package must not import `actor`, `learner` or `transport`, since a policy acts without them.
"""

from impala_mm.policy.exports import EXPORTS, register

__all__ = ["EXPORTS", "register"]
