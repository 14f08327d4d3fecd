"""The learner's end of the connection: the queue of unrolls and the parameters for actors.

A learner makes one `Server`. It offers its actors these functions, as graphs; `client` calls them:

    hello           introduces an actor; returns the learner's identity, or why it refuses the actor
    enqueue         puts a message's unrolls into the queue, once; waits while the queue is full
                    (for algorithms with rounds: and claims columns for the actor's next ones)
    infer           takes a step and returns the next actions (with --inference=learner)
    chunk           stores a part of unrolls that are too large for one message, before `enqueue`
    claim           claims columns of the learner's round (for algorithms with rounds)
    get_parameters  returns a part of the newest parameters

Each function checks the run's token first. A call that a full queue holds back waits within
TensorFlow and occupies no Python thread. A call that timed out at the actor may still be running
when the actor repeats it: the ledger (`delivery`) accepts each message once.
"""

import json
import secrets
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.config import messages
from impala_mm.data.episodes import FIELDS
from impala_mm.runtime import ports, starter
from impala_mm.runtime.log import Say
from impala_mm.transport.connected_actors import (
    ActorFailures,
    ConnectedActors,
    EnvironmentNumbers,
    LearnerLoad,
    Refusals,
)
from impala_mm.transport.delivery import DeliveryLedger, UnrollReceiver, call_python
from impala_mm.transport.listening import Listener
from impala_mm.transport.messages import (
    MAX_ACTORS,
    MAX_CONTENT,
    NO_NONCE,
    NO_POLICY,
    NO_TOKEN,
    PROTOCOL,
    RUN_ENDED,
    STAY,
    MessageHeader,
    MessageReply,
    ParametersReply,
    ParametersRequest,
    Reply,
    run_number,
)
from impala_mm.transport.parameter_store import ParameterStore
from impala_mm.transport.rounds import Rounds, why_unfit
from impala_mm.transport.tls import Credentials
from impala_mm.transport.validity import header_mistake, other_run, parse_hello, refusal

# With inference at the learner, actors may be silent for this many times as long before they are
# forgotten: their episodes are then lost, and a reset or a step may take minutes.
_STEPPING_PATIENCE = 10
_MAX_START = 100  # characters of the id of an actor's start that are remembered


# A function for graphs that takes a message: a MessageHeader as int64, contents as strings [N], and
# episodes that ended, as `data.episodes` has them. It returns a MessageReply as int64, and an
# answer as bytes.
TakeMessage = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
# Of the unrolls of an actor with this number, those that the learner may use.
SelectUnrolls = Callable[[int, list[bytes]], list[bytes]]


class InferenceService(Protocol):
    """Inference at the learner, as the server needs it; `inference` implements it."""

    has_received: bool  # whether an unroll was completed

    def attach(
        self,
        ledger: DeliveryLedger,
        queue: tf.queue.QueueBase,
        numbers: EnvironmentNumbers,
        rounds: Rounds | None = None,
        select_valid: SelectUnrolls = lambda actor, unrolls: unrolls,
    ) -> None:
        """Serve the learner process of this ledger; put valid unrolls into this queue."""

    def answer(
        self, header: tf.Tensor, contents: tf.Tensor, episodes: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Take a step of a group of environments; see `TakeMessage`."""

    def publish(self, version: int, values: Sequence[tf.Tensor]) -> None:
        """Act by these values from the next batch on."""

    def forget(self, actor: int) -> None:
        """Drop the actor's groups of environments and their unfinished unrolls."""

    def mean_batch(self) -> float:
        """Return the mean number of environments of an inference since the last call."""

    def close(self) -> None:
        """Refuse all further calls."""


class Server:
    """The server of one learner."""

    def __init__(
        self,
        address: str,
        held: ports.HeldAddress,
        token: str,
        identity: dict[str, Any],
        queue_capacity: int,
        say: Say = print,
        inference: InferenceService | None = None,
        unroll_bytes: int | None = None,
        rounds: Rounds | None = None,
        offers_socket: bool = True,
        find_mistake: Callable[[bytes], str] = lambda unroll: "",
    ):
        """Listen at the address that `held` holds; accept actors whose identity matches `identity`.

        `token` is the content of the token file. If it has certificates, a process of its own
        listens there, which relays actors that have them to this one. With `offers_socket` actors
        of this user and machine find the learner's own socket, and need no TLS.

        With `inference` the learner also acts for actors, with `rounds` it takes only the unrolls
        of open rounds. For `unroll_bytes` and `find_mistake` see `UnrollReceiver`.

        Raises OSError if it does not answer at `address`.
        """
        nonce, run = secrets.randbits(62), run_number(identity["run_id"])
        self.capacity = queue_capacity
        self._identity = {"learners": [address]} | identity
        self._identity |= {"protocol": PROTOCOL, "nonce": nonce}
        learners = self._identity["learners"]
        rank = learners.index(address) if address in learners else 0
        self.numbers = EnvironmentNumbers(rank, len(learners))
        self.actors, self.refusals = ConnectedActors(rank, rounds is not None), Refusals(say)
        self.ledger = DeliveryLedger(nonce, run, self.actors, self._is_invalid)
        self._say = say
        # (an unroll's bytes, its policy version), for the learner's batches. TensorFlow's queue
        # blocks the calls of actors that are faster than the learner, and no other call.
        self.queue = tf.queue.FIFOQueue(queue_capacity, [tf.string, tf.int64], [[], []])
        self._receiver = UnrollReceiver(
            self.ledger, self.queue, rounds, unroll_bytes, find_mistake, self.make_reply, say
        )
        self._parameters = ParameterStore(MAX_CONTENT)
        self.failures = ActorFailures(say)
        self._start = starter.start_id()
        self._inference, self.rounds = inference, rounds
        if inference:
            select_valid = self._receiver.select_valid
            inference.attach(self.ledger, self.queue, self.numbers, rounds, select_valid)
        self._closed = False

        credentials = Credentials.parse(token)
        functions = self._make_endpoints(credentials.token)
        self.listener = Listener(held, credentials, functions, offers_socket, say)
        self.listener.check(address, token, nonce)

    # -- the learner's side

    @property
    def dropped(self) -> int:
        """The number of unrolls that reached no learner, or that this one could not use."""
        unused = self.rounds.dropped if self.rounds else 0
        return self._receiver.unreadable + self.actors.dropped + unused

    @property
    def has_received(self) -> bool:
        """Whether a complete and valid unroll has been received."""
        return self._receiver.has_received or (
            self._inference is not None and self._inference.has_received
        )

    @property
    def mistakes(self) -> dict[int, str]:
        """The connected actors that sent invalid unrolls, and what is wrong in the first one."""
        connected, mistakes = set(self.actors.heard), dict(self._receiver.mistakes)
        return {actor: mistakes[actor] for actor in mistakes if actor in connected}

    def fill(self) -> float:
        """Return the queue's fill level, from 0 to 1."""
        return 0.0 if self._closed else int(self.queue.size()) / self.capacity

    def load(self, wait_share: float) -> LearnerLoad:
        """Return this learner's load; `wait_share` is the share of its time waiting for unrolls."""
        return self.actors.load(wait_share, self.fill(), self._playing())

    def publish(
        self, version: int, pack: Callable[[], bytes], values: Sequence[tf.Tensor] = ()
    ) -> None:
        """Offer the parameters that `pack` returns to actors, as this version.

        `pack` is called once, when the first actor reads them. Actors that read an older version
        may finish it. With inference at the learner, actions are chosen by `values` from now on.
        """
        self._parameters.publish(version, pack)
        if self._inference:
            self._inference.publish(version, values)
        if self.rounds:
            self.rounds.publish(version)

    def begin_update(self) -> None:
        """Prepare for an update on one more batch, whose result will be published."""
        if self.rounds:
            self.rounds.begin_update()

    def inference_metrics(self) -> dict[str, float]:
        """Return the mean number of environments of an inference since the last call, by key."""
        batch = self._inference.mean_batch() if self._inference else 0.0
        return {"inference_batch": batch} if batch else {}

    def _playing(self) -> Collection[int]:
        return self.rounds.players() if self.rounds else ()

    def forget_silent(self, seconds: float) -> list[int]:
        """Forget the actors that have sent nothing for `seconds`; return their numbers.

        The silence of those that play unrolls of rounds is expected. With inference at the learner,
        it must be longer.
        """
        self.refusals.report_strangers()
        seconds *= _STEPPING_PATIENCE if self._inference else 1
        gone = self.actors.forget_silent(seconds, self._playing())
        for actor in gone:
            if self._inference:
                self._inference.forget(actor)
            if self.rounds:
                self.rounds.forget(actor)
            self._say(
                f"nothing was received from actor {actor} for {seconds:g} s: it counts as gone "
                f"until its next unroll"
            )
        return gone

    def close(self) -> None:
        """End the waiting calls and refuse new ones; unrolls that are being sent are dropped."""
        self._closed = True
        if self._inference:
            self._inference.close()
        self.queue.close(cancel_pending_enqueues=True)

    # -- called by the endpoints; none of these holds a lock while it waits, or waits long

    def hello(self, request: bytes) -> np.ndarray:
        """Return the learner's identity, or why it refuses the actor; as JSON."""
        if self._closed:
            raise RuntimeError(RUN_ENDED)  # the caller raises Unreachable
        asked, mistake = parse_hello(request)
        if mistake:
            self.refusals.log("an actor is", mistake)
            return np.array(json.dumps(self._identity | {"refused": mistake}).encode(), object)
        asked["host"] = messages.escape_line(str(asked.get("host", "")), 100)  # as logs show it
        asked["host_name"] = messages.escape_line(asked.get("host_name") or asked["host"], 100)
        answer = dict(self._identity)
        if other := other_run(asked, self._start):
            if not asked.get("probe"):  # it tries again
                key = asked["start"][:_MAX_START], asked.get("actor")
                self.refusals.log_once(key, f"actor {key[1]} on {asked['host']}", other)
            return np.array(json.dumps(answer | {"other_run": other}).encode(), object)
        if (failure := asked.get("failure")) and self.failures.take(
            int(asked["actor"]), asked["host"], failure
        ):
            self.actors.leave(int(asked["actor"]))
            if self.rounds:
                self.rounds.forget(int(asked["actor"]))
        if not asked.get("probe"):
            if self._inference and self._parameters.version is None:
                raise RuntimeError("there is no policy yet")  # the caller tries again
            if refused := refusal(asked, self._identity) or self._why_unfit(asked):
                answer["refused"] = refused
                self.refusals.log(f"actor {int(asked['actor'])} on {asked['host']}", refused)
            else:
                answer["moves"] = self._join(asked)
                actor, sizes = int(asked["actor"]), asked.get("groups", ())
                answer["environments"] = self.numbers.join(actor, sizes, self._first_number(asked))
        return np.array(json.dumps(answer).encode(), object)

    def _why_unfit(self, asked: dict[str, Any]) -> str:
        """Return why an actor does not fit this learner's levels, rounds or numbers; or empty."""
        environments, level = sum(asked.get("groups", ())), asked.get("level", "")
        if level not in (levels := self._identity.get("level_name", "").split(",")):
            return f"this actor plays the level {level!r}, the learner's are {', '.join(levels)}"
        if asked["actor"] not in self.actors.joined and len(self.actors.joined) >= MAX_ACTORS:
            return (
                f"actors of {MAX_ACTORS:,} numbers have joined: give this one the --task of another"
            )
        if not self.numbers.has_room(asked["actor"], environments, self._first_number(asked)):
            return f"there are no numbers left for its {environments:,} environments"
        alone = self.rounds is not None and self.rounds.alone
        if alone and (others := self.actors.others(int(asked["actor"]))):
            return (
                f"--deterministic_run: one actor plays, and actor {others[0]} is connected: "
                f"start no other, or leave the flag out"
            )
        if self.rounds and environments > self.rounds.columns:
            return why_unfit(self.rounds.columns, environments)
        return ""

    def _first_number(self, asked: dict[str, Any]) -> int | None:
        """Return the first number that an actor's environments have in this run, if any."""
        numbered = asked.get("numbered", {})
        return numbered["first"] if numbered.get("run") == self._identity["run_id"] else None

    def _join(self, asked: dict[str, Any]) -> bool:
        """Register an actor; return whether it may be sent to other learners."""
        actor, incarnation = int(asked["actor"]), int(asked["incarnation"])
        movable = set(asked.get("learners", ())) == set(self._identity["learners"])
        if self.ledger.join(actor, incarnation) and self._inference:
            self._inference.forget(actor)
        self.actors.join(actor, asked, movable)
        self._say(f"actor {actor} on {asked['host']} joined")
        return movable

    def _is_invalid(self, header: MessageHeader) -> bool:
        """Return whether a message is refused since its numbers cannot be right."""
        sizes, infers = self.numbers.sizes(header.actor), self._inference is not None
        if mistake := header_mistake(header, sizes, infers):
            actor = header.actor
            self.refusals.log_once((actor,), f"actor {actor}: a message is", mistake)
        return bool(mistake)

    def refuse_stranger(self) -> np.ndarray:
        """Count a caller without the token and return the answer to it; as JSON."""
        self.refusals.stranger()
        return np.array(json.dumps({"refused": NO_TOKEN, "nonce": NO_NONCE}).encode(), object)

    def make_reply(self, header: MessageHeader, reply: Reply) -> MessageReply:
        """Return the reply to a message with unrolls or a claim, with the learner to feed next."""
        version, learner = self._parameters.version, None
        if len(self.actors.loads) > 1 and reply in {Reply.ACCEPTED, Reply.RUNNING}:
            learner = self.actors.redirect(header.actor, self.fill(), self._playing())
            if learner is not None and self.rounds:
                self.rounds.forget(header.actor)
        granted = None
        stays = header.actor in self.actors.heard  # it may have been sent on since it asked
        if self.rounds and reply == Reply.ACCEPTED and header.environments and stays:
            granted = self.rounds.claim(header.actor, header.environments)
        return MessageReply(
            reply,
            NO_POLICY if version is None else version,
            STAY if learner is None else learner,
            self.numbers.count,
            NO_POLICY if granted is None else granted,
        )

    def claim_columns(self, numbers: np.ndarray) -> np.ndarray:
        """Return the reply to a claim of a round's columns, which are granted or not yet."""
        header = MessageHeader.decode(numbers)
        if self._closed:
            raise RuntimeError(RUN_ENDED)  # the caller raises Unreachable
        if refused := self.ledger.refusal(header):
            return np.array(MessageReply(refused))
        assert self.rounds
        self.actors.heard_from(header.actor)
        return np.array(self.make_reply(header, Reply.ACCEPTED))

    def read_parameters(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a ParametersReply to a ParametersRequest, and a part of the parameters."""
        request = ParametersRequest(*map(int, numbers))
        version = None if request.version == NO_POLICY else request.version
        part = self._parameters.read(version, request.offset, request.reader)
        if part is None:
            return np.array(ParametersReply(NO_POLICY, 0, self.ledger.nonce)), np.array(b"", object)
        reply = ParametersReply(part.version, part.total, self.ledger.nonce)
        return np.array(reply), np.array(part.content, object)

    def _make_endpoints(self, token: str) -> dict[str, Any]:
        """Return the functions that clients may call, by name: those that this learner needs."""
        text, header = tf.TensorSpec([], tf.string), _spec(MessageHeader)
        receiver, reply_size = self._receiver, [len(MessageReply._fields)]
        denied = tf.constant(MessageReply(Reply.DENIED), tf.int64)

        def offer(*arguments: tf.TensorSpec, denied: Callable[[], Any]) -> Callable[[Any], Any]:
            """Make a function for callers with the token; the others get what `denied` returns."""
            specs = [text, *arguments]

            def decorate(function: Callable[..., Any]) -> Any:
                def call(*values: tf.Tensor) -> Any:
                    # TensorFlow's RPC compares the types with the signature, but not the shapes.
                    theirs, *rest = (
                        tf.ensure_shape(x, s.shape) for x, s in zip(values, specs, strict=True)
                    )
                    return tf.cond(tf.equal(theirs, token), lambda: function(*rest), denied)

                # AutoGraph would leave a file in /tmp for each function of a killed process.
                return tf.function(call, input_signature=specs, autograph=False)

            return decorate

        @offer(text, denied=lambda: call_python(self.refuse_stranger, [], tf.string))
        def hello(request):
            return call_python(self.hello, [request], tf.string)

        nothing = tf.constant(ParametersReply(NO_POLICY, 0, NO_NONCE), tf.int64), tf.constant(b"")

        @offer(_spec(ParametersRequest), denied=lambda: nothing)
        def get_parameters(request):
            reply, content = tf.numpy_function(
                self.read_parameters, [request], [tf.int64, tf.string]
            )
            shape = [len(ParametersReply._fields)]
            return tf.ensure_shape(reply, shape), tf.ensure_shape(content, [])

        contents, rows = tf.TensorSpec([None], tf.string), tf.TensorSpec([None, FIELDS], tf.float32)
        message = offer(header, contents, rows, denied=lambda: (denied, tf.constant(b"")))

        @offer(
            header,
            tf.TensorSpec([2], tf.int64),
            text,
            denied=lambda: tf.constant(Reply.DENIED, tf.int64),
        )
        def chunk(header, position, content):
            return call_python(receiver.store_chunk, [header, position, content], tf.int64)

        @offer(header, denied=lambda: denied)
        def claim(header):
            return call_python(self.claim_columns, [header], tf.int64, reply_size)

        functions = {"hello": hello, "get_parameters": get_parameters}
        if self._inference:
            return functions | {"infer": message(self._inference.answer)}
        functions |= {"enqueue": message(receiver.enqueue), "chunk": chunk}
        return functions | ({"claim": claim} if self.rounds else {})


def _spec(numbers: Any) -> tf.TensorSpec:
    """Return the tensor that carries a named tuple of numbers."""
    return tf.TensorSpec([len(numbers._fields)], tf.int64)
