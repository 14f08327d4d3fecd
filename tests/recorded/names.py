"""The names that variables have in checkpoints, for the smallest settings of each algorithm.

    .venv/bin/python -m tests.recorded.names                record them: names.txt

`test_names.py` compares. A name that is recorded no more needs an entry in `_RENAMED` of
`impala_mm/records/saved_variables.py`.
"""

from impala_mm.data import variable_names
from impala_mm.records import saved_variables
from tests.recorded import record
from tests.recorded.cases import CASES

NAMES = record.HERE / "names.txt"
# Cases which together have all kinds of variables.
_CASES = (
    *("impala", "impala-lstm", "impala-layer-norm", "impala-popart", "impala-normalised"),
    *("impala-entropy-target", "impala-kl-mu-pi-target", "impala-kl-pi-mu-target"),
    *("impala-kl-uniform-target", "impala-impact", "impala-teacher", "impala-guide", "impala-box"),
    *("impala-rmsprop", "impala-frames", "ppo", "ppo-frames", "vmpo", "dqn-duelling", "dqn-noisy"),
    *("dqn", "r2d2", "pqn", "sac", "sac-lstm", "sac-frames", "td3", "mpo"),
    "iql",
)


def of_all() -> list[str]:
    """Return the names without those of slots, each once; raise AssertionError if one has none."""
    names = set[str]()
    for case in CASES:
        if case.name in _CASES:
            variables = record.make(case).algorithm.variables
            for key, variable in saved_variables.named(variables).items():
                assert variable_names.path_of(variable), f"{case.name}: {key} has no name"
                if not hasattr(variable, "_slot_of"):
                    names.add(f"{case.algorithm}: {variable_names.of(variable)}")
    return sorted(names)


if __name__ == "__main__":
    NAMES.write_text("\n".join(of_all()) + "\n")
