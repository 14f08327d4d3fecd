"""The code and the commands that a page shows, and a user who types them in a home of their own."""

import re
import shutil
import subprocess

from processes import ROOT, run
from rows import read_rows

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$|^## ([^\n]*)$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    """Return (heading, text) of each block of a page in this language, in order."""
    heading, found = "", []
    for match in _BLOCK.finditer((ROOT / "sandbox" / page).read_text()):
        heading = match[3] or heading
        if match[1] == language:
            found.append((heading, match[2]))
    return found


class Reader:
    """A user whose clone is ~/impala_mm, and who types the commands of one page."""

    def __init__(self, page, home):
        self.commands, self.home = blocks(page, "sh"), home
        (home / "tmux").mkdir(parents=True)
        (home / "impala_mm").symlink_to(ROOT)
        assert (ROOT / ".venv").exists(), "the pages' commands need the environment of make setup"
        self._environment = {
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),  # what `make setup` installs is this project
            "TMUX_TMPDIR": str(home / "tmux"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
        }

    def type(self, *headings, limit=400):
        """Type the page's first block, then those under the headings; return the output."""
        first, *others = self.commands
        assert set(headings) <= {under for under, _ in others}, f"no commands under {headings}"
        script = first[1] + "".join(text for under, text in others if under in headings)
        code, printed = run("bash", "-exc", script, cwd=self.home, limit=limit, **self._environment)
        assert code == 0, printed
        return printed

    def rows(self, name):
        """Return the rows of metrics of a run that the page's commands name."""
        return read_rows(self.home / "research" / "runs" / name)

    def end(self):
        """End the runs and the tmux server that the frontend started, if it did."""
        shutil.rmtree(self.home / "state", ignore_errors=True)  # supervisors end without it
        command = ["tmux", "kill-server"]
        environment = self._environment | {"PATH": "/usr/bin:/bin:/usr/local/bin"}
        subprocess.run(command, env=environment, capture_output=True, check=False, timeout=20)
