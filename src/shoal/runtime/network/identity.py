"""Who belongs to a run: certificates of the run's own, signed by its driver. No private key leaves its process.

The driver makes an authority at start. A node's process makes a key and sends only its public half to the driver, which
signs it. The authority's certificate, and the public keys, travel over the channel that starts the nodes: whoever
overhears it can neither read what nodes say to each other nor call them.
"""

from __future__ import annotations

import datetime
import os
import secrets
import ssl
import tempfile
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A certificate lives as long as the processes of its run; no machine's clock has to be right for it.
FIRST_DAY, LAST_DAY = datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31)
_ISSUER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal run")])
_NODE = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shoal node")])


@dataclass(frozen=True)
class Trust:
    """What a node is told of its run at its start. It lets nobody in from another machine."""

    secret: bytes  # for those who meet on one machine
    authority: bytes  # the certificate (PEM) that signed all others


class Identity:
    """A process's own key; with the driver's signature it can prove that it belongs to the run."""

    def __init__(self, trust: Trust) -> None:
        self.secret = trust.secret
        self._trust = trust
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: dict[bool, ssl.SSLContext] = {}

    @property
    def public_key(self) -> bytes:
        return self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    def certify(self, certificate: bytes) -> None:
        """Take the driver's signature; before, this process can neither call nor be called over TLS."""
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._contexts = {serving: _context(serving, self._trust, certificate + key) for serving in (False, True)}

    def context(self, serving: bool) -> ssl.SSLContext:
        return self._contexts[serving]


class Authority:
    """The driver's: signs the keys of its nodes."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = _sign(self._key, self._key.public_key(), _ISSUER, authority=True)
        self.trust = Trust(secrets.token_bytes(32), certificate)

    def sign(self, public_key: bytes) -> bytes:
        """A certificate for a node's key."""
        return _sign(self._key, serialization.load_pem_public_key(public_key), _NODE, authority=False)

    def identity(self) -> Identity:
        """One for this process."""
        identity = Identity(self.trust)
        identity.certify(self.sign(identity.public_key))
        return identity


def _sign(key: ec.EllipticCurvePrivateKey, public_key: Any, subject: x509.Name, authority: bool) -> bytes:
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_ISSUER)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(FIRST_DAY)
        .not_valid_after(LAST_DAY)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .add_extension(_usage(authority), critical=True)
    )
    if not authority:
        both_ends = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = builder.add_extension(both_ends, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _context(serving: bool, trust: Trust, chain: bytes) -> ssl.SSLContext:
    """TLS 1.3 in which both ends show a certificate of the run, and no session is ever resumed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serving else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # machines have many names; the certificate says who belongs to the run
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trust.authority.decode())
    if serving:
        context.num_tickets = 0
    _load(context, chain)
    return context


def _load(context: ssl.SSLContext, chain: bytes) -> None:
    """`ssl` takes keys from files only: one in memory, or where there is none, one that is removed at once."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("shoal-key", os.MFD_CLOEXEC), "wb", buffering=0) as memory:
            memory.write(chain)
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}")
        return
    with tempfile.NamedTemporaryFile() as file:  # readable by its owner only
        file.write(chain)
        file.flush()
        context.load_cert_chain(file.name)
