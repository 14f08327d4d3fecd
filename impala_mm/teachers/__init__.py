"""Teachers: the trained policies, functions and SavedModels that a student learns from.

A learner's process calls `load` and `playing`; `algorithms.features.teacher` makes a loss of what
teachers answer. Each kind of teacher is a class in FORMATS, to which `register` adds one of the
user's (`teacher` describes them). The package must not import `learner`, `actor` or `transport`: it
knows entries and policies, and nothing of how a run moves them.
"""

from typing import Any

from impala_mm.config.registry import Registry

# `load` asks the last one first whether it recognises a teacher.
FORMATS: Registry[Any] = Registry(
    "kind of teacher",
    {
        "trained": "impala_mm.teachers.trained:TrainedTeacher",
        "function": "impala_mm.teachers.functions:FunctionTeacher",
        "dopamine": "impala_mm.teachers.dopamine:DopamineTeacher",
        "saved_model": "impala_mm.teachers.saved_models:SavedModelTeacher",
    },
)
register = FORMATS.register
