"""A function's docstring begins with a verb, a class's with the name of a thing.

The linter checks the rest: D401 (imperative mood), D205 and D400 (a summary of one line that ends
in a period). D401 knows verbs by a list and accepts a first word that is not in it, such as "Of".
"""

import ast
import re

from processes import ROOT

# Words with which no description of what a function does begins.
NOT_VERBS = set(
    """a about above according after all also always an and another any are as at because before
    being below between both but by can each either else empty enough every everybody everything for
    from had has have here how if in inside instead into is it its itself last later least less like
    many more most much neither never next no nobody none nor not nothing now of off on once one
    only or other others otherwise our out over own per rank same seconds several she should since
    so some somebody something such than that the their them then there these they this those
    through thus to together too twice two under unless until unlike up us values was we were what
    whatever when where whether which while who whoever whole whom whose why will with within
    without yet""".split()
)
# Words with which no name of a thing begins.
NOT_NOUNS = set(
    """after and are as at because before but by for from had has have here how if in into is not of
    on or since so than that then there they to until was were what when where whether while who
    whom whose why with""".split()
)
SOURCES = [
    path
    for top in "impala_mm launcher nets docker sandbox tests/helpers tests/chaos".split()
    for path in sorted((ROOT / top).rglob("*.py"))
] + [ROOT / "experiment.py", ROOT / "run_experiment_mm_raw.py"]


def _first_word(docstring):
    word = docstring.split()[0] if docstring.split() else ""
    return re.sub("[^a-z']", "", word.lower()) if word[:1].isalpha() else ""


def _is_property(node):
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def _complaints(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        docstring = ast.get_docstring(node)
        if docstring is None or getattr(node, "name", "").startswith("test"):
            continue
        word = _first_word(docstring)
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}: {docstring[:60]!r}"
        if isinstance(node, ast.Module | ast.ClassDef):
            if word in NOT_NOUNS:
                yield f"{where} begins with no name of a thing"
        elif not _is_property(node) and (not word or word in NOT_VERBS):
            yield f"{where} begins with no verb: write what the function does"


def test_docstrings_begin_with_what_a_function_does_or_what_a_class_is():
    found = [complaint for path in SOURCES for complaint in _complaints(path)]
    assert not found, "\n".join(found)
