"""Certificates for the connections of one user's runs, or of one run; `run_token` keeps them.

Only what makes them needs the package cryptography: it is imported there.
"""

import binascii
import datetime
import re
import secrets

DAYS_BEFORE, DAYS_AFTER = 1, 3650  # hosts' clocks differ; a user's file lasts for years
ROLES = "learner", "actor"
_PARTS = ("CERTIFICATE", *2 * ("CERTIFICATE", "PRIVATE KEY"))  # of what `make` returns
_ACTORS = _PARTS[:3]  # of what `without_learner` returns
_PEM = re.compile(r"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)


class CannotMake(Exception):
    """Certificates cannot be made here; the message says what is missing."""


def make(days_before: int = DAYS_BEFORE, days_after: int = DAYS_AFTER) -> str:
    """Return a new certificate authority and, for each role, a certificate and its key, as PEM.

    An actor's is for clients, a learner's for both: learners' hosts connect to each other by it.

    The certificates name the run and the role, not hosts. They are valid from `days_before` days
    ago until `days_after` days from now. The authority's own key is not kept. Raises CannotMake.
    """
    try:
        from cryptography import x509  # noqa: PLC0415
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415
    except ImportError as error:
        raise CannotMake(f"the package cryptography cannot be loaded ({error})") from None

    run = f"impala_mm {secrets.token_hex(8)}"
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, run)])
    authority = ec.generate_private_key(ec.SECP256R1())
    day, now = datetime.timedelta(days=1), datetime.datetime.now(datetime.UTC)

    def begin(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - days_before * day,
            not_valid_after=now + days_after * day,
        )

    def sign(builder: x509.CertificateBuilder) -> str:
        signed = builder.sign(authority, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()

    constraint = x509.BasicConstraints(ca=True, path_length=0)
    parts = [sign(begin(issuer, authority).add_extension(constraint, critical=True))]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    for role, own in zip(ROLES, (usages, usages[:1]), strict=True):
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = (NameOID.ORGANIZATION_NAME, run), (NameOID.COMMON_NAME, role)
        name = x509.Name([x509.NameAttribute(*each) for each in attributes])
        alternative = x509.SubjectAlternativeName([x509.DNSName(role)])
        certificate = begin(name, key).add_extension(alternative, critical=False)
        parts.append(sign(certificate.add_extension(x509.ExtendedKeyUsage(own), critical=True)))
        parts.append(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ).decode()
        )
    return "".join(parts)


def split(content: str) -> list[str]:
    """Return the certificates and keys in the content of a token file, in the order of `make`."""
    return [found[0] for found in _PEM.finditer(content)]


def is_whole(content: str) -> bool:
    """Return whether a token file's certificates are those of `make`, or without the learner's."""
    kinds = tuple(found[1] for found in _PEM.finditer(content))
    marks = (content.count(f"-----{word} ") for word in ("BEGIN", "END"))
    roles = ROLES if kinds == _PARTS else ROLES[1:]
    return (
        kinds in {_PARTS, _ACTORS}
        and all(number == len(kinds) for number in marks)
        and all(map(_is_of, roles, split(content)[1::2]))
    )


def without_learner(content: str) -> str:
    """Return the content of a token file without the learner's certificate and key.

    A host that has only this cannot pose as a learner.
    """
    parts = split(content)
    for part in parts[1:3] if len(parts) == len(_PARTS) else ():
        content = content.replace(part, "")
    return content


def _is_of(role: str, certificate: str) -> bool:
    """Return whether a certificate names this role, as a name in the format of DNS."""
    body = "".join(certificate.strip().splitlines()[1:-1])
    try:
        return bytes([0x82, len(role)]) + role.encode() in binascii.a2b_base64(body)
    except binascii.Error:
        return False
