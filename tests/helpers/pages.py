"""The code and the commands that a page shows, and a user who types them in a home of their own.

The user has the environment of the README's part on the package: no file of this clone.
"""

import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

from processes import ROOT, run
from rows import read_rows

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|^## ([^\n]*)$", re.MULTILINE | re.DOTALL)
_OURS = ("impala_mm", "__editable__")


def blocks(page, language):
    """Return (heading, text) of each block of a page in this language, in order."""
    heading, found = "", []
    for match in _BLOCK.finditer((ROOT / page).read_text()):
        heading = match[3] or heading
        if match[1] == language:
            found.append((heading, match[2]))
    return found


class Package:
    """The package, installed as the README says: into ~/impala_mm/.venv, from a wheel.

    Its dependencies are those of the tests' environment, so that nothing is downloaded.
    """

    def __init__(self, home):
        self.home = home
        uv = Path(sys.prefix) / "bin" / "uv"
        self._run(uv, "build", "--no-build-isolation", "--out-dir", home / "dist", ROOT)
        (self.wheel,) = (home / "dist").glob("*.whl")
        make, install, *self.others = _lines_of_readme()
        self._run("bash", "-exc", make)
        self.commands = home / "impala_mm" / ".venv" / "bin"
        (packages,) = (self.commands.parent / "lib").glob("python3.*/site-packages")
        (packages / "dependencies.pth").write_text(str(_link_dependencies(home / "dependencies")))
        self._run("bash", "-exc", f". {self.commands}/activate\n{install}")
        self.project = Path(self.run("impala-mm", "docs").strip())

    def run(self, command, *arguments, cwd=None, code=0):
        """Run a command of the package in a folder, an empty one unless given."""
        return self._run(self.commands / command, *arguments, cwd=cwd, code=code)

    def _run(self, *command, cwd=None, code=0):
        environment = {"HOME": str(self.home), "PYTHONPATH": "", "PIP_NO_INDEX": "1"}
        ended, printed = run(*command, cwd=cwd or self.home, limit=280, **environment)
        assert ended == code, printed
        return printed


def _lines_of_readme():
    (block,) = [text for _, text in blocks("README.md", "sh") if "pip install 'dist/" in text]
    return block.splitlines()


def _link_dependencies(folder):
    """Make a folder with what is installed here, except this project; return it."""
    folder.mkdir()
    for path in Path(site.getsitepackages()[0]).iterdir():
        if not path.name.startswith(_OURS):
            (folder / path.name).symlink_to(path)
    return folder


class Reader:
    """A user who types the commands of one page, and has the environment ~/impala_mm/.venv."""

    def __init__(self, page, home, venv):
        self.page, self.home = page, home
        (home / "tmux").mkdir(parents=True)
        (home / "impala_mm").mkdir()
        (home / "impala_mm" / ".venv").symlink_to(venv)
        self._environment = {
            "HOME": str(home),
            "PYTHONPATH": "",
            "TMUX_TMPDIR": str(home / "tmux"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
        }

    def type(self, *headings, limit=400):
        """Type the page's first commands, then those under the headings; return the output."""
        first, *others = blocks(self.page, "sh")
        assert set(headings) <= {under for under, _ in others}, f"no commands under {headings}"
        script = first[1] + "".join(text for under, text in others if under in headings)
        return self._run("bash", "-exc", script, limit=limit)

    def run_python(self, limit=400):
        """Run all Python of the page as one script; return the output."""
        script = "\n".join(text for _, text in blocks(self.page, "python"))
        (self.home / "script.py").write_text(script)
        python = self.home / "impala_mm" / ".venv" / "bin" / "python"
        return self._run(python, "script.py", limit=limit)

    def _run(self, *command, limit):
        code, printed = run(*command, cwd=self.home, limit=limit, **self._environment)
        assert code == 0, printed
        return printed

    def rows(self, name):
        """Return the rows of metrics of a run that the page's commands name."""
        return read_rows(self.home / "research" / "runs" / name)

    def end(self):
        """End the runs and the tmux server that the frontend started, if it did."""
        shutil.rmtree(self.home / "state", ignore_errors=True)  # supervisors end without it
        if tmux := shutil.which("tmux"):
            environment = os.environ | self._environment
            command = [tmux, "kill-server"]
            subprocess.run(command, env=environment, capture_output=True, check=False, timeout=20)
