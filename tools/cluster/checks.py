"""Readiness checks over the network: each returns None when all is well, otherwise what is wrong.

Owns how HTTP, DNS and TCP are asked. Imports nothing of this package.
"""

import socket
import ssl
import struct
import urllib.error
import urllib.request
from pathlib import Path

QUERY_ID = 0x5354
TIMEOUT_SECONDS = 2.0


def http_check(
    url: str, *, authority: Path | None = None, certificate: Path | None = None, verify: bool = True
) -> str | None:
    """Return None when a GET answers 200, otherwise what is wrong; a readiness check for `wait_until`.

    Args:
        url: What to ask.
        authority: Certificate authority of the server.
        certificate: Path without suffix of our client certificate (`.crt`, `.key`).
        verify: False for programs that made their own certificate.
    """
    context: ssl.SSLContext | None = None
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=None if authority is None else str(authority))
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(f"{certificate}.crt", f"{certificate}.key")
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=5) as answer:
            return None if answer.status == 200 else f"HTTP {answer.status}"
    except urllib.error.HTTPError as error:
        text = error.read(2000).decode(errors="replace")
        error.close()
        failed = [line for line in text.splitlines() if line.startswith("[-]")]
        return f"HTTP {error.code}: {'; '.join(failed) or text[:200]}"
    except (OSError, ValueError) as error:
        return str(error)


def dns_query(name: str) -> bytes:
    """Return a DNS query for the IPv4 address of a name (RFC 1035, section 4)."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return struct.pack("!6H", QUERY_ID, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", 1, 1)


def dns_check(server: str, name: str, expected: str, port: int = 53) -> str | None:
    """Ask a DNS server over UDP for a name whose only address we know."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(TIMEOUT_SECONDS)
        try:
            one.sendto(dns_query(name), (server, port))
            answer = one.recv(1500)
        except OSError as error:
            return f"no answer from DNS at {server}: {error}"
    # A single address record ends the answer section, or an EDNS record follows it: so look anywhere.
    if answer[:2] == struct.pack("!H", QUERY_ID) and socket.inet_aton(expected) in answer[12:]:
        return None
    return f"DNS at {server} does not answer {name} with {expected} (code {answer[3] & 15})"


def tcp_check(address: str, port: int) -> str | None:
    """Connect to a TCP port."""
    try:
        socket.create_connection((address, port), timeout=TIMEOUT_SECONDS).close()
    except OSError as error:
        return f"no connection to {address}:{port}: {error}"
    return None
