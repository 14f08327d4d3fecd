"""The content of a token file, and the TLS contexts of actors and learners made from it."""

import os
import ssl
from typing import NamedTuple

from impala_mm.runtime.certificates import ROLES, split

LEARNER, ACTOR = ROLES


class Credentials(NamedTuple):
    """The parts of a token file; without certificates nothing is encrypted."""

    token: str
    authority: str = ""  # the certificate that signed the others, as PEM; or empty
    learner: str = ""  # the learner's certificate and key; empty on hosts that only have actors
    actor: str = ""  # the actor's

    @classmethod
    def parse(cls, content: str) -> "Credentials":
        """Return the credentials in the content of a token file."""
        token, blocks = content.partition("\n")[0], split(content)
        if not blocks:
            return cls(token)
        assert len(blocks) in {3, 5}, "the token file is damaged"
        return cls(token, blocks[0], "\n".join(blocks[1:-2]), "\n".join(blocks[-2:]))

    def context(self, role: str) -> ssl.SSLContext:
        """Return the TLS context of a learner's front or of an actor: it accepts only the other."""
        is_learner = role == LEARNER
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_learner else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority)
        file = os.memfd_create("certificate")  # a certificate can be loaded only from a file
        try:
            os.write(file, (self.learner if is_learner else self.actor).encode())
            context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        if is_learner:
            context.num_tickets = 0  # sessions are not resumed
        return context


def role_of(certificate: dict | None) -> str:
    """Return the role that a peer's certificate names."""
    names = (certificate or {}).get("subjectAltName", ())
    return next((name for kind, name in names if kind == "DNS"), "")
