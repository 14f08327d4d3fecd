"""Gives networks, a kind of teacher and a format of exports their names, for --import=own_names."""

import impala_mm.policy
import impala_mm.teachers
import nets

# What "module:name" says is imported when it is needed: this module loads no TensorFlow.
nets.register("TwinAgent", "own_network:twin")
nets.register("TwinLSTMAgent", "own_network:twin_lstm")
impala_mm.teachers.register("linear", "own_teacher:LinearTeacher")
impala_mm.policy.register("npz", "own_export:write_arrays")
