"""A certificate for a private server, and how its clients verify it.

It is self-signed and made for one run: clients get it as text and trust no other. So its dates are not checked, and
nodes whose clocks differ can connect.
"""

from __future__ import annotations

import ipaddress
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Final

from speedo.errors import StoreError

CERTIFICATE: Final = "certificate.pem"
KEY: Final = "key.pem"
_NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME, https://docs.openssl.org/3.0/man3/X509_VERIFY_PARAM_set_flags/"""
_REQUEST: Final = """
[req]
prompt = no
distinguished_name = subject
x509_extensions = extensions
[subject]
CN = SpeeDO
[extensions]
basicConstraints = critical,CA:TRUE
keyUsage = critical,digitalSignature,keyCertSign
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
subjectAltName = {name}
"""


def make_certificate(folder: Path, host: str, *, program: str = "openssl") -> str:
    """Write certificate and key for `host`, a name or an address, to files of mode 0600.

    Returns the certificate as PEM. Raises `StoreError`.
    """
    found = shutil.which(program)
    if found is None:
        raise StoreError(
            f"{program} is not installed, which makes the certificate for TLS: apt-get install openssl"
        )
    command = [
        found, "req", "-x509", "-config", "/dev/stdin", "-newkey", "ec",
        "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256", "-days", "3650",
        "-keyout", str(folder / KEY), "-out", str(folder / CERTIFICATE),
    ]  # fmt: skip
    request = _REQUEST.format(name=_name(host))
    try:
        made = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=30, umask=0o077
        )
    except subprocess.TimeoutExpired:
        raise StoreError(f"{program} made no certificate within 30 s: see why it hangs") from None
    if made.returncode:
        said = " ".join(made.stderr.split())[-200:]
        raise StoreError(
            f"{program} made no certificate for {host}: use OpenSSL 1.1.1 or later ({said})"
        )
    return (folder / CERTIFICATE).read_text()


def trusting(ca_pem: str) -> ssl.SSLContext:
    """A client's TLS context that trusts this CA alone and checks the server's name."""
    try:
        context = ssl.create_default_context(cadata=ca_pem)
    except (ssl.SSLError, ValueError):
        raise StoreError("the certificate of the store's authority is damaged") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= _NO_CHECK_TIME
    return context


def _name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"
