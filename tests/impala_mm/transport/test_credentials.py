"""Those whom a learner refuses: without a certificate, or with one that is not an actor's."""

import re
import ssl
import time

import pytest
from fronted import ME, SECRET, TOKEN, Learner
from processes import free_port
from supervising import until

from impala_mm.runtime import certificates, run_token
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport.client import Client, Refused, Unreachable
from impala_mm.transport.server import Server
from impala_mm.transport.tls import ACTOR, LEARNER, Credentials


@pytest.fixture(scope="module")
def shared():
    with Learner() as made:
        yield made


@pytest.fixture
def learner():
    with Learner() as made:
        yield made


OTHER = run_token.make()
_MINE = Credentials.parse(TOKEN)


def _text(days_before=certificates.DAYS_BEFORE, days_after=certificates.DAYS_AFTER):
    return f"{SECRET}\n{certificates.make(days_before=days_before, days_after=days_after)}"


@pytest.mark.parametrize(
    ("token", "here", "there"),
    [
        # The actor looks first; where it is satisfied, the learner decides.
        (OTHER, "self-signed certificate|unable to get local issuer", "the token file of another"),
        (
            "\n".join([SECRET, _MINE.authority, _MINE.learner, Credentials.parse(OTHER).actor]),
            "unknown ca",
            "its certificate is not accepted: ",
        ),
    ],
    ids=["another run", "another run's certificate"],
)
def test_another_certificate_is_refused_with_the_command_that_helps(learner, token, here, there):
    with pytest.raises(Refused, match=rf"copy its token file to this host.*TLS: .*({here})"):
        Client(learner.address, token, 10, from_outside=True)
    line = learner.await_refusals()[0]
    assert re.fullmatch(rf"1 connection refused from 127.0.0.1 \(.*{there}.*\)", line)
    assert learner.join().hello({"probe": True})["nonce"]


def test_a_learner_does_not_take_another_one_for_an_actor(learner):
    token = "\n".join([SECRET, _MINE.authority, _MINE.learner, _MINE.learner])
    with pytest.raises(Unreachable, match="the connection was closed"):
        Client(learner.address, token, 10, from_outside=True)
    [line] = learner.await_refusals()
    assert "its certificate is not an actor's" in line


@pytest.mark.parametrize(
    ("days", "why"), [((30, -1), "certificate has expired"), ((-1, 30), "is not yet valid")]
)
def test_a_certificate_is_refused_before_and_after_its_time(monkeypatch, days, why):
    """The learner's own check finds it, too; here it does not look."""
    monkeypatch.setattr("impala_mm.transport.listening.Listener.check", lambda *_: None)
    context = Credentials.parse(token := _text(*days)).context(ACTOR)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it does not look at dates
    with Learner(token=token) as learner:
        bare = learner.dial()
        with pytest.raises(ssl.SSLError), context.wrap_socket(bare) as secure:
            secure.recv(1)
        until(lambda: any(why in line for line in learner.refusals()), 10)
        now = time.strftime("%Y-%m-%d")
        with pytest.raises(Refused, match=rf"clock of this host \({now}.* \(TLS: .*{why}"):
            Client(learner.address, token, 10, from_outside=True)


def test_an_actor_whose_certificate_is_outside_its_time_for_the_learner_is_told_of_the_clock(
    monkeypatch,
):
    """Only the learner's clock is wrong: the actor, which does not look here, finds nothing."""
    monkeypatch.setattr("impala_mm.transport.listening.Listener.check", lambda *_: None)
    make_context = Credentials.context

    def without_looking(self, role):
        context = make_context(self, role)
        if role == ACTOR:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    monkeypatch.setattr(Credentials, "context", without_looking)
    token, words = _text(30, -1), r"clock of this host .*or of the learner's is wrong"
    with Learner(token=token) as learner, pytest.raises(Refused, match=words):
        Client(learner.address, token, 10, from_outside=True)


def test_whoever_has_no_certificate_connects_and_reads_nothing(learner):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    secure = context.wrap_socket(learner.dial())  # TLS 1.3 gets this far
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"), secure:
        secure.recv(1)
    (line,) = learner.await_refusals()
    assert "refused from 127.0.0.1 (it has no certificate)" in line


def test_older_tls_is_refused(shared):
    context = _MINE.context(ACTOR)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), shared.dial() as bare:
        context.wrap_socket(bare, server_hostname=LEARNER)


def test_an_actor_without_tls_and_one_whose_learner_has_none_are_told(shared):
    with pytest.raises(Unreachable, match="nothing answers at"):
        Client(shared.address, SECRET, 1)
    address = f"127.0.0.1:{free_port()}"
    plain = Server(address, HeldAddress(address), SECRET, ME, 1, lambda _: None)
    assert plain.listener.front is None
    with pytest.raises(Refused, match=f"{address} does not use TLS"):
        Client(address, TOKEN, 5)
    assert Client(address, SECRET, 5).hello({"probe": True})["nonce"]
    plain.close()
