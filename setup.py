"""The build of the wheel: it also holds the files of the project that lie in no package.

They are the pages with their examples, which `impala-mm docs` finds, and what `--deploy` copies to
other hosts and `impala-mm install-horovod` builds with. All else stands in pyproject.toml.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_HERE = Path(__file__).parent
_FILES = (
    *("pyproject.toml", "setup.py", "constraints.lock", "workers.csv.example"),
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "Makefile"),
    *("tests/helpers/replaying.py", "tests/helpers/dqn_like.py"),  # examples, as are those below
    *("tests/test_policy_gradients.py", "tests/test_regularisers.py"),  # which pages name
    "tests/test_value_learning.py",
)
_FOLDERS = ("docker", "sandbox", "tests/algorithms")
# A link of a page to the code, which lies two folders above the copied pages.
_LINK_TO_CODE = re.compile(r"\]\(((?:\.\./)*)(?=(?:impala_mm|launcher|nets|experiment\.py)\b)")


class BuildWithProject(build_py):
    """The packages, and a copy of the other files in launcher/project/."""

    def run(self) -> None:
        """Build both."""
        super().run()
        if self.editable_mode:
            return
        for path in _project_files():
            target = Path(self.build_lib, "launcher", "project", path.relative_to(_HERE))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            if path.suffix == ".md":
                target.write_text(_LINK_TO_CODE.sub(r"](\1../../", path.read_text()))


def _project_files() -> Iterator[Path]:
    yield from map(_HERE.joinpath, _FILES)
    for folder in _FOLDERS:
        for path in sorted((_HERE / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path


setup(cmdclass={"build_py": BuildWithProject})
