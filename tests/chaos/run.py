"""A run that is disturbed at random, and then checked.

    .venv/bin/python tests/chaos/run.py --seed=7 --minutes=15

Six simulated hosts (`hosts`) have two learners, three actors and the frontend. Every 20 to 60 s
something is killed, stopped, cut off, slowed down, filled or powered off (`disturbances`). The seed
decides what, where and for how long. At the end the run is stopped, and `checker` judges the files
that it has left. What happened is printed with its time, and each finding on a line of its own; the
exit code is 1 if there is any. It needs root.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from deadlines import Deadline  # noqa: E402 - found in the folders above
from hosts import Lan, why_not  # noqa: E402

from tests.chaos import checker, disturbances  # noqa: E402
from tests.chaos.disturbances import Disturbance  # noqa: E402
from tests.chaos.evidence import Event  # noqa: E402
from tests.chaos.subject import Ended, Subject  # noqa: E402

_BETWEEN = 20.0, 60.0  # seconds between the end of a disturbance and the next one
_CALM = 40.0  # seconds in which the undisturbed rate is measured
_START_SECONDS = 180.0  # timeout for the first updates on all environments
_MOST = 3  # disturbances in a row after which the run is given the time to recover
_WHOLE_SECONDS = 150.0  # timeout for it to recover from them
_OWN_MOUNTS = "CHAOS_HAS_OWN_MOUNTS"  # environment variable


class ChaosRun:
    """A run, what was done to it so far, and what was found out about it meanwhile."""

    def __init__(self, subject: Subject, folder: Path):
        self._subject, self._folder = subject, folder
        self._began = time.time()
        self.findings: list[str] = []
        # The last disturbance as (words, begin, end), until the run has recovered from it.
        self._disturbed: tuple[str, float, float] | None = None
        self._unrecovered = 0  # disturbances since the run was whole
        (folder / "events.jsonl").touch()

    def go(self, drawn: random.Random, kinds: Iterator[Disturbance], minutes: float) -> None:
        """Start the run, disturb it for some minutes, and stop it."""
        try:
            self._subject.start()
            self._await_whole(_START_SECONDS, "the start")
            self._say("all environments play; the undisturbed rate is measured")
            begin = time.time()
            time.sleep(_CALM)
            self._record("the calm before", begin, time.time(), time.time(), calm=True)
            end = time.monotonic() + 60 * minutes
            while time.monotonic() < end:
                self._disturb(next(kinds))
                self._watch(drawn.uniform(*_BETWEEN))
                if self._unrecovered >= _MOST:
                    self._await_whole(_WHOLE_SECONDS, "the last disturbance")
            self._await_whole(_WHOLE_SECONDS, "the last disturbance")
            time.sleep(_BETWEEN[0])
            self._record("the end", time.time(), time.time(), time.time(), calm=True)
        except Ended as error:
            self.findings.append(str(error))
        self._say("stopping")
        left = self._subject.stop()
        (self._folder / "left.txt").write_text("".join(f"{line}\n" for line in left))
        self._subject.keep_files(self._folder)

    def _disturb(self, what: Disturbance) -> None:
        begin = time.time()
        if self._disturbed:  # the run has not recovered from the one before
            self._note_whole(begin)
        self._say(f"{what.words}: {done}" if (done := what.begin()) else what.words)
        time.sleep(what.seconds)
        what.end()
        self._subject.attach_again()
        self._disturbed = what.words, begin, time.time()
        self._unrecovered += 1

    def _watch(self, seconds: float) -> None:
        """Wait, and note when the run has recovered."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check_whole()
            time.sleep(0.5)

    def _await_whole(self, seconds: float, after: str) -> None:
        deadline = Deadline(seconds)
        since = self._disturbed[2] if self._disturbed else time.time()
        while not self._subject.is_whole(since):
            self._subject.attach_again()
            if deadline.is_over():
                self.findings.append(f"the run is not whole {seconds:g} s after {after}")
                break
            time.sleep(0.5)
        self._check_whole()

    def _check_whole(self) -> None:
        self._subject.attach_again()
        if self._disturbed and self._subject.is_whole(self._disturbed[2]):
            self._say(f"whole again after {time.time() - self._disturbed[2]:.0f} s")
            self._note_whole(time.time())
            self._unrecovered = 0

    def _note_whole(self, whole: float) -> None:
        assert self._disturbed
        words, begin, end = self._disturbed
        self._record(words, begin, end, whole)
        self._disturbed = None

    def _record(
        self, words: str, begin: float, end: float, whole: float, calm: bool = False
    ) -> None:
        event = Event(words, begin, end, whole, calm)
        with (self._folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(event._asdict()) + "\n")

    def _say(self, words: str) -> None:
        print(f"{time.time() - self._began:6.0f} s  {words}", flush=True)


def main() -> int:
    """Make the run and print what happened; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=int(time.time()), help="what is drawn")
    parser.add_argument("--minutes", type=float, default=15, help="of disturbances")
    parser.add_argument("--keep", type=Path, help="a new folder for the files that are checked")
    given = parser.parse_args()
    if reason := why_not():
        print(f"no simulated hosts: {reason}")
        return 2
    if _OWN_MOUNTS not in os.environ:  # what is mounted ends with this program
        command = ["unshare", "--mount", "--propagation=private", sys.executable, *sys.argv]
        os.execvpe(command[0], command, os.environ | {_OWN_MOUNTS: "1"})
    print(f"seed {given.seed}", flush=True)
    folder = given.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    with Lan() as lan:
        drawn = random.Random(given.seed)
        subject = Subject(lan)
        try:
            run = ChaosRun(subject, folder)
            kinds = disturbances.draw_all(lan, drawn)
            run.go(drawn, kinds, given.minutes)
        finally:
            subject.close()
    findings = [*run.findings, *checker.check(folder)]
    for finding in findings:
        print(f"found: {finding}")
    print(checker.summary(folder))
    print(f"seed {given.seed}: {len(findings)} findings; files: {folder}")
    if not (findings or given.keep):
        shutil.rmtree(folder)
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
