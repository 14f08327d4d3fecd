"""Takes over from a controller on a host of the CSV, and leaves the next one there later.

A controller that is gone may come back, or still act where only this machine cannot reach it, while
a frontend restarts what fails. So the frontend begins a new term first: hosts refuse the orders of
earlier ones (`launcher.node.order_server`).
"""

import time

from launcher.node.run_registry import Record
from launcher.running import controlled_hosts, controller
from launcher.running.followed_run import FAILURES, RETRY_SECONDS, FollowedRun


class Takeover:
    """The frontend of one run in place of its controller."""

    def __init__(self, followed: FollowedRun):
        self._followed, self._run = followed, followed.run
        self._retry_time = 0.0
        self._has_noted_learners = True  # False: they have not reported their hosts yet

    def refuse_earlier(self, record: Record) -> Record:
        """Let the hosts refuse the controller from which this frontend takes over, if there is one.

        Those that are unreachable learn of it when they are restored. Return the record, which has
        the hosts of the learners as the controller has left them.
        """
        entry = controller.read(self._run)
        if self._followed.orders or not entry.get("place"):
            return record
        if entry["ended"] or entry["superseded"]:
            return record
        record = self._note_learners(record)
        controlled_hosts.begin_term(self._run)
        self._followed.say(
            f"this frontend restarts what fails in place of the controller on {entry['host']}, "
            f"whose orders are refused from now on"
        )
        followed, place = self._followed, entry["place"]
        try:
            controlled_hosts.prepare(
                *(self._run, followed.hosts, record, followed.config, followed.say)
            )
        except FAILURES as error:
            followed.restore_times[place] = time.monotonic() + RETRY_SECONDS
            followed.say_once(f"could not reach the controller's host {place}: {error}")
        return record

    def _note_learners(self, record: Record) -> Record:
        """Record on which hosts the learners are: the controller may have left others out."""
        reported = self._followed.learners.get("learner_hosts") or []
        addresses = {each.rpartition(":")[0] for each in reported}
        nodes = self._followed.hosts.remote_nodes
        places = [each for each in record.learner_places if nodes[each].address in addresses]
        self._has_noted_learners = bool(reported)
        if places:
            record = self._followed.change_record(learner_places=places) or record
        return record

    def hand_over(self, now: float) -> None:
        """Leave the next controller on the host once it answers, and all learners are back."""
        entry, record = controller.read(self._run), self._run.record
        followed = self._followed
        if record is None or not entry.get("superseded") or entry["ended"]:
            return
        if not self._has_noted_learners:
            record = self._note_learners(record)
        place = entry["place"]
        if (
            not self._has_noted_learners
            or now < self._retry_time
            or followed.config.controller == controller.NONE
            or followed.is_away(place)
            or followed.restore_times
            or set(record.learner_places) != set(record.first_learner_places)
            or followed.learners["state"] != "running"
        ):
            return
        try:
            followed.say(controller.describe(followed.start_controller()))
        except FAILURES as error:
            self._retry_time = now + RETRY_SECONDS
            followed.say_once(f"could not start the controller on {place} again: {error}")
