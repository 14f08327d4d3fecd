"""The pictures of formulas in sandbox/ are what the code computes now."""

import re
import sys

import numpy as np
import pytest
from processes import ROOT, run


@pytest.mark.slow
def test_the_pictures_of_formulas_are_those_of_the_code(tmp_path):
    code, printed = run(
        sys.executable, "sandbox/algorithm_pictures.py", tmp_path, PYTHONPATH=str(ROOT)
    )
    assert code == 0, printed
    drawn = sorted(tmp_path.glob("*.svg"))
    assert len(drawn) == 5
    for path in drawn:
        texts = [each.read_text() for each in (path, ROOT / "sandbox" / path.name)]
        now, before = (re.findall(r"(?<=[ML ])-?\d+\.?\d*(?=[ \n\"])", text) for text in texts)
        assert len(now) == len(before) > 100, path.name
        # Hundredths of a point may differ between processors.
        np.testing.assert_allclose(np.array(now, float), np.array(before, float), atol=0.1)
