"""The comparison of learners: equal settings and versions, and a different address for each.

`jobs.learner` and `jobs.rehearse` compare these through MPI before TensorFlow is loaded, so that a
mistake is refused at once. Under Gloo there is no MPI, and the same values are compared through
Horovod. `learner.setup` compares what is known only later, such as the network and environments.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from impala_mm.config.flags import info
from impala_mm.config.settings import Config
from impala_mm.distributed import mpi
from impala_mm.runtime import lifecycle, provenance
from impala_mm.runtime.log import Say
from impala_mm.runtime.run_token import TokenFile
from impala_mm.runtime.starter import process_rank

_PACKAGES = ("dm-sonnet", "horovod", "numpy")
# At the first exit with an error mpirun ends all processes, and on a busy machine loses what it has
# not read yet. So rank 0, which logs the error, waits and then exits first.
_FIRST_EXIT_SECONDS, _LAST_EXIT_SECONDS = 0.5, 2


class SettingsDiffer(Exception):
    """The learners of one run cannot work together; the message names what differs, or why."""


class Agreement:
    """One learner's part in the comparison of all learners, which is made once."""

    def __init__(
        self,
        config: Config,
        protocol: int = 0,
        address: str = "",
        problem: str = "",
        token_file: TokenFile | None = None,
    ):
        """Collect what to compare.

        `address` is where actors reach this learner, or empty; `problem` is a sentence that says
        why it cannot listen there, or empty. The content of the token file is not sent to others.
        """
        self._mine = _settings(config, protocol), address, problem, token_file
        # The addresses of all learners, in the order of ranks; empty until they are known.
        self.addresses: list[str] = []

    def reach_through_mpi(self, say: Say) -> None:
        """Compare the learners if their launcher uses MPI; otherwise `reach` will.

        If they differ, or one of them has a problem, rank 0 logs it and all processes exit with
        code 2.
        """
        if process_rank().size == 1:
            self.addresses = [self._mine[1]]
        if not mpi.is_used():
            return
        try:
            self.addresses = _compare(mpi.gather(self._mine))
        except SettingsDiffer as error:
            is_first = process_rank().rank == 0
            if is_first:
                say(f"error: {error}")
            mpi.finalize()
            time.sleep(_FIRST_EXIT_SECONDS if is_first else _LAST_EXIT_SECONDS)
            lifecycle.exit_now(2)

    def reach(self, gather: Callable[[Any, str], list[Any]]) -> list[str]:
        """Return the addresses of all learners, in the order of ranks.

        If the learners were not compared through MPI, compare them through `gather`, the method of
        a `LearnerGroup`; if they differ, raise SettingsDiffer on all ranks.
        """
        if not self.addresses:
            self.addresses = _compare(gather(self._mine, "agreement"))
        return self.addresses


def check_equal(settings: Sequence[Mapping[str, Hashable]]) -> None:
    """Raise SettingsDiffer if `settings`, one mapping per rank, differ; name the first difference.

    Every rank that compares the same mappings raises the same message.
    """
    for name in dict.fromkeys(name for mapping in settings for name in mapping):
        ranks: dict[Hashable, list[str]] = {}
        for rank, mapping in enumerate(settings):
            ranks.setdefault(mapping.get(name), []).append(str(rank))
        if len(ranks) > 1:
            values = ", ".join(f"{value} on {' and '.join(on)}" for value, on in ranks.items())
            raise SettingsDiffer(
                f"the learners' {name} differ: {values}; give all of them the same"
            )


def _settings(config: Config, protocol: int) -> dict[str, Hashable]:
    """Return versions and flags by name; versions first, since they may explain the rest."""
    installed = provenance.versions()
    python = ".".join(installed["python"].split(".")[:2])
    tensorflow = installed.get("tensorflow") or installed.get("tensorflow-cpu")
    versions: dict[str, Hashable] = {"Python": python, "tensorflow": tensorflow}
    versions |= {name: installed.get(name) for name in _PACKAGES}
    return {
        "versions of the protocol": protocol,
        **{f"versions of {name}": version for name, version in versions.items()},
        **{
            f"--{f.name}": getattr(config, f.name)
            for f in dataclasses.fields(config)
            if not info(f).own or f.name == "transport_security"
        },
    }


def _compare(
    gathered: Sequence[tuple[Mapping[str, Hashable], str, str, TokenFile | None]],
) -> list[str]:
    """Return all addresses.

    Raises SettingsDiffer if settings or token files differ, addresses are equal, or a learner has
    a problem.
    """
    check_equal([settings for settings, *_ in gathered])
    _check_token_files([file for *_, file in gathered if file])
    addresses = [address for _, address, *_ in gathered]
    for rank, address in enumerate(addresses):
        if address and address in addresses[:rank]:
            raise SettingsDiffer(
                f"learners {addresses.index(address)} and {rank} were both given {address}: each "
                f"needs an entry of its own in --learner_hosts"
            )
    for rank, (_, _, problem, _) in enumerate(gathered):
        if problem:
            raise SettingsDiffer(f"learner {rank}: {problem}")
    return addresses


def _check_token_files(files: Sequence[TokenFile]) -> None:
    """Raise SettingsDiffer unless the learners' token files are equal: actors have only one."""
    others = [file for file in files if file.digest != files[0].digest]
    if not others:
        return
    first, other_hosts = files[0], [file for file in others if file.host != files[0].host]
    if not other_hosts:
        raise SettingsDiffer(
            f"the learners' token files differ: {first.path} and {others[0].path} on {first.host}; "
            f"give all of them the same --token_file"
        )
    copies = dict.fromkeys(f"scp {first.path} {file.host}:{file.path}" for file in other_hosts)
    raise SettingsDiffer(
        f"the learners' token files differ: copy learner 0's to the others' hosts (on "
        f"{first.host}: {' && '.join(copies)})"
    )
