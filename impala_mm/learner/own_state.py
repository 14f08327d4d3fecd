"""The state that each learner saves for itself: its replay or source, and its local variables.

    LOGDIR/own/learner-R/     on the host of learner R, below the folder of the run
        0000012000/           the state after that update, named like the checkpoint it belongs to
            source/           what the source's `save` wrote
            variables.*       the local variables, as tf.train.Checkpoint writes them
            about.json        the size and SHA-256 of each of these files
        saving/               a state being written; renamed once all of it is on the disk

All learners save after the same update, each before rank 0 writes the checkpoint, whose about.json
contains a digest of each learner's state. A state is written from the variables and the source
themselves while training pauses, so that none is held in memory twice.
"""

import contextlib
import hashlib
import shutil
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from impala_mm.distributed.group import LearnerGroup
from impala_mm.learner.sources.own import OwnSource
from impala_mm.records import checkpoint, saved_variables
from impala_mm.records.checkpoint import CheckpointInfo, all_in
from impala_mm.replay.shard import Share
from impala_mm.runtime.log import Say


class Saved(NamedTuple):
    """The result of saving one learner's own state."""

    digest: str  # of the state's about.json; empty if the state could not be saved
    why_not: str = ""


class OwnState:
    """One learner's own state and the folder that contains it."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        size: int,
        source: OwnSource | None,
        variables: Sequence[tf.Variable],
        say: Say,
    ):
        """Save below the run's `folder` what the `source`, if it saves, and `variables` contain.

        `size` is the number of learners.
        """
        self._rank, self._size, self._say = rank, size, say
        self.move(folder)
        self._source = source if source and source.saves else None
        self._noun = self._source.noun if self._source else "source"  # in messages
        self._variables = list(variables)
        self._bytes = 0  # size of the last state

    def __bool__(self) -> bool:
        return bool(self._source or self._variables)

    def move(self, folder: Path) -> None:
        """Save below the run's folder `folder` from now on."""
        self._run = folder
        self._folder = folder / "own" / f"learner-{self._rank}"

    def save(self, update: int) -> Saved:
        """Save the state after an update; earlier states are kept until `prune`."""
        work, final = self._folder / "saving", self._path(update)
        try:
            with saved_variables.writing(work, final, {"update": update}):
                if self._rank:  # learner 0 alone has made the run's folder, on its host
                    self._run.mkdir(parents=True, exist_ok=True)
                for folder in (self._folder.parent, self._folder):
                    folder.mkdir(exist_ok=True)
                work.mkdir()
                checkpoint.refuse_full_disk(work, self._bytes)
                if self._source:
                    (work / "source").mkdir()
                    self._source.save(work / "source")
                if self._variables:
                    local = saved_variables.keyed("local", self._variables)
                    saved_variables.write(work, local)
                self._bytes = checkpoint.size(work)
                shutil.rmtree(final, ignore_errors=True)  # left by a run that was resumed before it
            return Saved(_digest(final))
        except (OSError, checkpoint.Unwritable) as error:
            return Saved("", f"{self._folder}: {error}")
        except Exception as error:  # a fault in the algorithm's source
            traceback.print_exc()
            return Saved("", f"{type(error).__name__}: {error}")

    def prune(self, kept: Sequence[int]) -> None:
        """Delete the states of all updates but these, also of learners that the run has no more."""
        for folder in self._folder.parent.glob("learner-*"):
            rank = folder.name.removeprefix("learner-")
            is_former = rank.isdecimal() and int(rank) >= self._size
            if not (is_former or folder == self._folder):
                continue
            for path in all_in(folder):
                if int(path.name) not in kept:
                    shutil.rmtree(path, ignore_errors=True)
            if is_former and not all_in(folder):
                shutil.rmtree(folder, ignore_errors=True)

    def restore_source(self, path: Path, about: CheckpointInfo) -> str:
        """Let the source restore what belongs to the checkpoint at a path, that of another run.

        Return why it cannot, or cannot restore a part; empty if all is restored.
        """
        if not self._source:
            return "what it trains with saves no replay"
        run = path.resolve().parent.parent
        other = OwnState(run, self._rank, self._size, self._source, [], self._say)
        try:
            if missing := other._restore(about):
                return missing
        except _Unusable as error:
            return str(error)
        self._source.make_older(about.updates)  # this run counts its updates from 0
        other._say_restored(about)
        return ""

    def restore(self, about: CheckpointInfo) -> None:
        """Load the state that belongs to a checkpoint; if there is none, print why and continue."""
        try:
            missing = self._restore(about)
        except _Unusable as error:
            self._say(f"starts with {self._what('an empty', 'fresh')}: {error}")
            return
        if missing:
            self._say(f"starts without a part of its {self._noun}: {missing}")
        self._say_restored(about)

    def _say_restored(self, about: CheckpointInfo) -> None:
        """Print what was restored."""
        saved_by = len(about.own_states)
        if not self._is_dealt(saved_by):
            megabytes = checkpoint.size(self._path(about.updates)) / 1e6
            self._say(f"restored {self._what('its', 'its')} ({megabytes:,.1f} MB)")
            return
        fresh = "; its local variables are fresh" if self._variables else ""
        self._say(f"restored its {self._noun} (from what {saved_by} learners saved){fresh}")

    def _is_dealt(self, saved_by: int) -> bool:
        """Return whether another number of learners saved, so that shares are restored."""
        return saved_by != self._size and self._source is not None and self._source.deals_out

    def _restore(self, about: CheckpointInfo) -> str:
        """Load the state; return which parts of the source are missing. Raises _Unusable."""
        saved_by = len(about.own_states)
        if not saved_by:
            raise _Unusable("the checkpoint was saved without any")
        if self._is_dealt(saved_by):
            with _unusable_if_it_fails(f"what {saved_by} learners saved"):
                return self._restore_shares(about)
        if self._rank >= saved_by:
            raise _Unusable(f"the checkpoint was saved by {saved_by} learners")
        path = self._path(about.updates)
        with _unusable_if_it_fails(str(path)):
            self._verify(path, about, self._rank)
            named = saved_variables.keyed("local", self._variables)
            saved_variables.check_shapes(path, named)
            if self._source:
                self._source.restore(_source_in(path))
            saved_variables.load(path, named)
        return ""

    def _restore_shares(self, about: CheckpointInfo) -> str:
        """Load this learner's part of what another number of learners has saved.

        Return which of it is missing.
        """
        assert self._source
        shares, problems = [], []
        for rank, first, of in deal_out(len(about.own_states), self._size, self._rank):
            path = self._folder.parent / f"learner-{rank}" / self._path(about.updates).name
            try:
                self._verify(path, about, rank)
                shares.append(Share(_source_in(path), first, of))
            except (checkpoint.Damaged, _Unusable, OSError) as error:
                problems.append(str(error))
        if not shares and problems:
            raise _Unusable("; ".join(problems))
        self._source.restore_shares(shares)
        return "; ".join(problems)

    def _verify(self, path: Path, about: CheckpointInfo, rank: int) -> None:
        """Raise _Unusable or Damaged unless a path has what a learner saved with a checkpoint."""
        if not about.own_states[rank]:
            raise _Unusable("it could not be saved with the checkpoint")
        if not path.is_dir():
            raise _Unusable(f"{path} does not exist on this host")
        checkpoint.verify_files(path)
        if _digest(path) != about.own_states[rank]:
            raise _Unusable(f"{path} belongs to another checkpoint of update {about.updates}")

    def _path(self, update: int) -> Path:
        return self._folder / f"{update:010d}"

    def _what(self, source: str, variables: str) -> str:
        """Return what this learner keeps, in words, each part after its article."""
        parts = [f"{source} {self._noun}"] if self._source else []
        parts += [f"{variables} local variables"] if self._variables else []
        return " and ".join(parts)


def reload_source(
    own: OwnState | None, path: Path, about: CheckpointInfo, group: LearnerGroup
) -> None:
    """Let each learner's source restore what belongs to a checkpoint of another run.

    Raises Mismatch, on all learners alike, if one cannot: the user has asked for it.
    """
    problem = own.restore_source(path, about) if own else "it has no replay that is saved"
    everyones = group.gather(problem, "reload_source")
    if problems := [f"learner {rank}: {text}" for rank, text in enumerate(everyones) if text]:
        raise checkpoint.Mismatch(
            f"--reload_replay: {problems[0]}: leave it out, or give the newest checkpoint of a run "
            f"with --replay_save and the same unrolls, whose folder is on each learner's host"
        )


def deal_out(saved_by: int, learners: int, rank: int) -> list[tuple[int, int, int]]:
    """Return which of the states that `saved_by` learners saved go to a learner, and their parts.

    (r, first, of) stands for every `of`-th unroll of learner r's, from number `first` on. Each
    unroll goes to one of the `learners`.
    """
    if learners <= saved_by:
        return [(r, 0, 1) for r in range(rank, saved_by, learners)]
    source = rank % saved_by
    return [(source, rank // saved_by, len(range(source, learners, saved_by)))]


class _Unusable(Exception):
    """A state cannot be restored; the message says why."""


@contextlib.contextmanager
def _unusable_if_it_fails(what: str) -> Iterator[None]:
    """Raise _Unusable in place of any other exception while `what` is restored."""
    try:
        yield
    except (checkpoint.Damaged, checkpoint.Mismatch, OSError) as error:
        raise _Unusable(str(error)) from None
    except _Unusable:
        raise
    except Exception as error:  # a fault in the algorithm's source, or contents that do not fit
        raise _Unusable(f"restoring {what} raised {type(error).__name__}: {error}") from error


def _source_in(path: Path) -> Path:
    """Return the folder of a state that its source wrote; raise _Unusable if none did."""
    if not (path / "source").is_dir():
        raise _Unusable(f"{path} contains no source, such as a replay, but local variables alone")
    return path / "source"


def _digest(path: Path) -> str:
    """Return the digest of a state's about.json, which contains those of all its files."""
    return hashlib.sha256((path / "about.json").read_bytes()).hexdigest()
