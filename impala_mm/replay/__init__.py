"""Replay: old unrolls for a learner's batches, beside the new ones of its actors.

What is stored is in `store`; `samplers` and `elite` have the kinds of replay: how unrolls are drawn
and which make room. `mixer` mixes the parts of a batch, and `source` prepares batches ahead; a
learner makes one `source.ReplaySource`. `data_set` writes games that a policy has played, and
`recorded_games` reads them for a student. This package must not import `algorithms`, `transport` or
`learner`: it knows unrolls as bytes, and features only as numbers.

    register("recent", "my_package.recent:Recent", options={"share": Option(0.5, most=1)})
"""

from impala_mm.config.replay_mix import Option, register

__all__ = ["Option", "register"]
