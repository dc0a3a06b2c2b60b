"""A certificate for tests of TLS."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rlhf.http.binding import Access


def self_signed(folder: Path) -> Access:
    """A certificate of 127.0.0.1 that signs itself, with its key, as files in a folder."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    pem, private = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "certificate.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    return Access(certificate=folder / "certificate.pem", key=folder / "key.pem")
