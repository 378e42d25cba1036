"""Who answers at a TCP port: a libp2p handshake over a connection of its own, as far as it proves the other's peer id.

The daemon cannot be asked: it takes the connection that it has for a new one. Two small things are spoken, both public
specifications of libp2p: multistream-select 1.0 (a protocol's name and its echo) and the TLS handshake, whose
certificate holds the peer's public key and that key's signature over the certificate's own.
"""

import asyncio
import socket
import ssl
from contextlib import suppress

import base58
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from collab.errors import PeerUnreachable, TimedOut
from collab.swarm.identity import is_signed_by
from collab.types import PeerId

MULTISTREAM = b"\x13/multistream/1.0.0\n"
TLS = b"\x0b/tls/1.0.0\n"
LIBP2P_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
SIGNED_PREFIX = b"libp2p-tls-handshake:"
"""Source of these: libp2p specifications, tls/tls.md, "Peer Authentication"."""
KEY_BYTES, SIGNATURE_BYTES = 36, 64
"""A protobuf of an Ed25519 public key, and a signature of that key; other kinds of keys are no peers of ours."""
KEY_HEAD = bytes((0x30, 4 + KEY_BYTES + SIGNATURE_BYTES, 0x04, KEY_BYTES))
SIGNATURE_HEAD = bytes((0x04, SIGNATURE_BYTES))
"""ASN.1: a sequence of two octet strings."""
IDENTITY_HASH = bytes((0x00, KEY_BYTES))
"""Multihash that holds the key itself."""
MAX_BUFFERED_BYTES = 1 << 14


async def who_answers(host: str, port: int, *, timeout_s: float) -> PeerId:
    """Peer id of whoever listens there; nothing is said to it that a stranger would not say.

    Raises:
        PeerUnreachable: nobody, or nobody who speaks libp2p with a key like ours.
        TimedOut: no proof within ``timeout_s``.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(host, port)
    except TimeoutError:
        raise TimedOut(f"no peer answered at {host}, TCP port {port}, within {timeout_s:.1f} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise PeerUnreachable(f"no peer answers at {host}, TCP port {port}: {error}") from error


async def _ask(host: str, port: int) -> PeerId:
    reader, writer = await asyncio.open_connection(sock=await _connected(host, port), limit=MAX_BUFFERED_BYTES)
    try:
        writer.write(MULTISTREAM + TLS)
        if await reader.readexactly(len(MULTISTREAM + TLS)) != MULTISTREAM + TLS:
            raise ValueError("it does not speak libp2p over TLS")
        await writer.start_tls(_context())
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return peer_of(certificate)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _connected(host: str, port: int) -> socket.socket:
    """To an IP address. uvloop remembers the last thousands that it has connected to itself."""
    dialling = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    dialling.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(dialling, (host, port))
    except BaseException:
        dialling.close()
        raise
    return dialling


def _context() -> ssl.SSLContext:
    """No authority vouches for a peer's certificate: the key inside it does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["libp2p"])
    return context


def peer_of(certificate: bytes) -> PeerId:
    """Peer id whose key has signed the key of a TLS certificate.

    Args:
        certificate: DER; that its sender holds its key the handshake has shown.

    Raises:
        ValueError: it is no libp2p certificate of an Ed25519 peer, or the signature is wrong.
    """
    parsed = x509.load_der_x509_certificate(certificate)
    try:
        extension = parsed.extensions.get_extension_for_oid(LIBP2P_EXTENSION).value
    except x509.ExtensionNotFound as error:
        raise ValueError("its certificate names no peer") from error
    if not isinstance(extension, x509.UnrecognizedExtension):
        raise ValueError("its certificate names no peer")
    content = extension.value
    key, signature = content[len(KEY_HEAD) :][:KEY_BYTES], content[-SIGNATURE_BYTES:]
    if content != KEY_HEAD + key + SIGNATURE_HEAD + signature:
        raise ValueError("its key is none of Ed25519")
    peer = PeerId(base58.b58encode(IDENTITY_HASH + key).decode())
    own_key = parsed.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if not is_signed_by(peer, SIGNED_PREFIX + own_key, signature):
        raise ValueError("its certificate is not signed by the peer that it names")
    return peer
