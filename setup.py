"""The build of the wheel: it also holds the files of the project that lie in no package.

`--deploy` copies them to other hosts, and `impala-mm install-horovod` builds with them. All else
stands in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_FILES = (
    *("pyproject.toml", "setup.py", "constraints.lock", "workers.csv.example"),
    *("README.md", "LICENSE", "Makefile"),
)


class BuildWithProject(build_py):
    """The packages, and a copy of the other files in launcher/project/."""

    def run(self) -> None:
        """Build both."""
        super().run()
        if self.editable_mode:
            return
        project = Path(self.build_lib, "launcher", "project")
        here = Path(__file__).parent
        for path in [*map(here.joinpath, _FILES), *sorted((here / "docker").iterdir())]:
            if path.is_dir():  # __pycache__
                continue
            target = project / path.relative_to(here)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


setup(cmdclass={"build_py": BuildWithProject})
