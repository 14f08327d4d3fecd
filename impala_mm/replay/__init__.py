"""Replay: old unrolls for a learner's batches, beside the new ones of its actors.

What is stored is in `store`, how it is drawn in `samplers`, what makes room in `removal`, and
`source` mixes the parts of a batch; a learner makes one `source.ReplaySource`. This package must
not import `algorithms`, `transport` or `learner`: it knows unrolls as bytes, and features only as
numbers.
"""
