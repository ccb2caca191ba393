"""Certificate authorities and certificates for the tests, made on the spot."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Pair:
    """Paths of a certificate and its key."""

    cert: str
    key: str


class Authority:
    """A certificate authority that signs what a test asks for."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        builder = _builder(self._name, self._name, self._key.public_key(), timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self._cert = builder.sign(self._key, hashes.SHA256())
        self.cacert = str(folder / f"{name}.pem")
        Path(self.cacert).write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def issue(self, file: str, common_name: str = "heet", host: str = "127.0.0.1", valid: bool = True) -> Pair:
        """A certificate for server and client use; valid=False: it has expired yesterday."""
        key = ec.generate_private_key(ec.SECP256R1())
        lasts = timedelta(days=1) if valid else timedelta(days=-1)
        builder = _builder(_named(common_name), self._name, key.public_key(), lasts)
        try:
            alternative: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            alternative = x509.DNSName(host)
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        pair = Pair(str(self._folder / f"{file}.crt"), str(self._folder / f"{file}.key"))
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        Path(pair.key).write_bytes(pem)
        cert = builder.sign(self._key, hashes.SHA256())
        Path(pair.cert).write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        return pair


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lasts: timedelta):
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + lasts)
    )
