"""The checks between machines: actors reach their learner, and learners each other."""

import contextlib
from collections.abc import Sequence

from launcher.checks.finding import Finding
from launcher.node.task import OF_LEARNERS
from launcher.plan import process_plan
from launcher.plan.host_environment import Grounds
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker
from launcher.remote import parallel
from launcher.remote.hosts import Hosts
from launcher.remote.remote_node import Failed, Lost
from launcher.running import start

_AT_ONCE = 4  # hosts that send at the same time, or they would measure each other
_SEND_SECONDS = 0.5
_ALL_REDUCE_SECONDS = 120.0
_SLOW = 100.0  # Mbit/s, under which weights and unrolls of an actor's host may be held up
_ALL_REDUCE = """
import sys, tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
total = float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum))
sys.exit(0 if total == hvd.size() * (hvd.size() + 1) / 2 else f"it gave {total}")
"""


class Links:
    """Of one run."""

    def __init__(
        self,
        hosts: Hosts,
        workers: Sequence[Worker],
        grounds: Grounds,
        config: LauncherConfig,
    ):
        self._hosts, self._grounds, self._config = hosts, grounds, config
        self._learners = [worker for worker in workers if worker.job == "learner"]
        self._actors = [worker for worker in workers if worker.job == "actor"]

    def check(self) -> list[Finding]:
        """Nothing where all is on one machine."""
        if len({self._grounds(worker).place for worker in (*self._learners, *self._actors)}) == 1:
            return []
        if wrong := self._names():
            return wrong
        return [*self._reach(), *self._all_reduce()]

    def _names(self) -> list[Finding]:
        """A learner listens at its name as its own host knows it: not on the loopback, as Debian
        has it in /etc/hosts."""
        findings = self._same_names()
        for learner in self._learners:
            address, place = self._grounds(learner).address, self._grounds(learner).place
            known = self._hosts.call(place, "addresses", host=address)
            if known and all(each.startswith("127.") for each in known):
                said = f"row {learner.line}: {address} is {known[0]} to itself: nobody reaches that"
                remedy = "write its address in the CSV, or mend its /etc/hosts"
                findings.append(Finding("names", False, said, remedy, place))
        return findings

    def _same_names(self) -> list[Finding]:
        """Open MPI takes hosts of one name for one machine, and hangs."""
        named: dict[str, str] = {}
        findings = []
        for place in dict.fromkeys(self._grounds(learner).place for learner in self._learners):
            name = self._hosts.call(place, "facts", roots=[], pythons=[])["host"]
            if (other := named.setdefault(name, place)) != place:
                said = f"{place or 'this machine'} and {other or 'this machine'} both call "
                said += f"themselves {name}: Open MPI would take them for one machine"
                findings.append(Finding("names", False, said, "give one another host name"))
        return findings

    def _reach(self) -> list[Finding]:
        """Each actor's host sends to the port of its learner for a moment."""
        pairs: dict[tuple[str, str, int], str] = {}
        actors = [row for row in self._actors for _ in range(row.count)]
        for i, actor in enumerate(actors):
            number = actor.learner if actor.learner >= 0 else i % len(self._learners)
            learner = self._learners[number]
            to, place = self._grounds(learner), self._grounds(actor).place
            if place != to.place:
                pairs[place, to.address, learner.tf_port] = to.place
        listening, findings = self._listen(pairs)
        findings += parallel.in_order(lambda pair: self._send(*pair), listening, _AT_ONCE)
        for place in set(pairs.values()):
            with contextlib.suppress(Lost, Failed):
                self._hosts.call(place, "stop_listening")
        return findings

    def _listen(
        self, pairs: dict[tuple[str, str, int], str]
    ) -> tuple[list[tuple[str, str, int]], list[Finding]]:
        """Pairs whose learner's host listens now; and why the others do not."""
        trouble = {}
        for (_, address, port), place in pairs.items():
            if (address, port) not in trouble:
                try:
                    self._hosts.call(place, "listen", address=address, port=port)
                    trouble[address, port] = ""
                except (Lost, Failed, OSError) as error:
                    trouble[address, port] = str(error)
        bad = [
            Finding("reach", False, f"cannot listen on {address}:{port}: {why}", "", pairs_place)
            for (_, address, port), pairs_place in pairs.items()
            if (why := trouble[address, port])
        ]
        return [pair for pair in pairs if not trouble[pair[1:]]], list(dict.fromkeys(bad))

    def _send(self, place: str, address: str, port: int) -> Finding:
        try:
            rate = self._hosts.call(place, "send", host=address, port=port, seconds=_SEND_SECONDS)
        except (Lost, Failed, OSError) as error:
            said = f"cannot reach its learner at {address}:{port}: {error}"
            return Finding("reach", False, said, "open that port in the firewall between", place)
        remedy = "raise --min_pull_secs, or move it nearer" if rate < _SLOW else ""
        said = f"{rate:,.0f} Mbit/s to {address}:{port}"
        return Finding("reach", None if remedy else True, said, remedy, place)

    def _all_reduce(self) -> list[Finding]:
        """By the same mpirun and agent that the learners will have."""
        others = process_plan.elsewhere(self._learners, self._grounds)
        if not others:
            return []
        first = self._grounds(self._learners[0])
        told = process_plan.environment_of_all(self._config)
        command = process_plan.ranks(
            *(self._learners, self._config, self._grounds, list(told), "AGENT"),
            lambda ground: [ground.python, "-c", _ALL_REDUCE],
        )
        code, said = self._hosts.call(
            *(first.place, "rehearse"),
            command=process_plan.set_up(self._learners[0], self._config, command),
            agent=start.agent(first),
            credentials=start.keys(self._hosts, first, others, "check"),
            environment=process_plan.of_mpirun(told, first) | {OF_LEARNERS: "check"},
            workdir=first.workdir,
            seconds=_ALL_REDUCE_SECONDS,
            within=_ALL_REDUCE_SECONDS + 10,
        )
        hosts = len(self._learners)
        if code == 0:
            return [Finding("all-reduce", True, f"works between {hosts} learners")]
        last = [line for line in said.splitlines() if line.strip()][-6:] or ["it said nothing"]
        remedy = "see --mpirun_args: hosts with several networks, firewalls"
        return [Finding("all-reduce", False, "\n".join(last), remedy)]
