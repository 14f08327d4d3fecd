"""Replay: old unrolls for a learner's batches, beside the new ones of its actors.

What is stored is in `store`, how it is drawn in `samplers`, what makes room in `removal`. `mixer`
mixes the parts of a batch, `files` keeps the replays on a disk, and `source` prepares batches
ahead; a learner makes one `source.ReplaySource`. `data_set` writes games that a policy has played,
and `recorded_games` reads them for a student. This package must not import `algorithms`,
`transport` or `learner`: it knows unrolls as bytes, and features only as numbers.
"""
