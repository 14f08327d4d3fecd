"""What a learner says of an error that is not its user's."""

import pytest

from impala_mm.learner import in_short


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("two\nlines", "lines"),
        ("", ""),
        (
            "Graph execution error:\n\nDetected at node MatMul defined at (last call last):\n"
            '  File "a.py", line 1, in <module>\n\nMatrix size-incompatible: In[0]: [1,2]\n'
            "\t [[{{node MatMul}}]] [Op:__inference_update_1]",
            "Matrix size-incompatible: In[0]: [1,2]",
        ),
        (
            "failed to allocate memory\n\t [[{{node conv}}]]\nHint: If you want to see a list of "
            "allocated tensors when OOM happens, add report_tensor_allocations_upon_oom.\n",
            "failed to allocate memory",
        ),
        (
            "Graph execution error:\n\n2 root error(s) found.\n  (0) INTERNAL:  the cable is cut\n"
            "\t [[{{node a}}]]\n  (1) INTERNAL:  so is the other\n0 successful operations.\n"
            "0 derived errors ignored. [Op:__inference_update_1]",
            "(0) INTERNAL:  the cable is cut",
        ),
    ],
)
def test_an_error_of_many_lines_is_said_in_the_one_that_counts(message, short):
    assert in_short(RuntimeError(message)) == short
