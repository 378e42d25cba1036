"""What a libp2p certificate proves, and what does not pass for one."""

import asyncio
import datetime as dt
import gc
import sys

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from collab.errors import PeerUnreachable
from collab.net.fresh_dial import LIBP2P_EXTENSION, SIGNED_PREFIX, peer_of, who_answers
from collab.net.listening import host_in, tcp_port_in
from tests.swarm.people import PEOPLE

PEER, OTHER = PEOPLE[0], PEOPLE[1]
OWN_KEY, OTHER_KEY = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
PROTOBUF = bytes((0x08, 0x01, 0x12, 0x20))


def octets(content: bytes) -> bytes:
    return bytes((0x04, len(content))) + content


def signed_key(signature: bytes, key: bytes | None = None) -> bytes:
    """The extension's content, as the specification of libp2p has it."""
    body = octets(key or PROTOBUF + PEER.key.public_key().public_bytes_raw()) + octets(signature)
    return bytes((0x30, len(body))) + body


def signature_over(key: ec.EllipticCurvePrivateKey, *, prefix: bytes = SIGNED_PREFIX) -> bytes:
    return PEER.sign(prefix + key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def certificate(extension: bytes | None) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(OWN_KEY.public_key())
        .serial_number(1)
        .not_valid_before(day)
        .not_valid_after(day + dt.timedelta(days=36500))
    )
    if extension is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(LIBP2P_EXTENSION, extension), critical=True)
    return builder.sign(OWN_KEY, SHA256()).public_bytes(Encoding.DER)


def test_a_certificate_names_the_peer_that_signed_its_key() -> None:
    assert peer_of(certificate(signed_key(signature_over(OWN_KEY)))) == PEER.peer_id


@pytest.mark.parametrize(
    "extension",
    [
        None,
        b"",
        signed_key(signature_over(OTHER_KEY)),
        signed_key(signature_over(OWN_KEY, prefix=b"")),
        signed_key(bytes(64)),
        signed_key(signature_over(OWN_KEY), PROTOBUF + OTHER.key.public_key().public_bytes_raw()),
        signed_key(signature_over(OWN_KEY)) + b"x",
        signed_key(signature_over(OWN_KEY))[:-1],
        signed_key(signature_over(OWN_KEY)[:32]),
        signed_key(signature_over(OWN_KEY), bytes((0x08, 0x00, 0x12, 0x20)) + bytes(32)),
    ],
    ids=lambda _: "extension",  # the keys differ from process to process
)
def test_no_other_certificate_names_a_peer(extension: bytes | None) -> None:
    with pytest.raises(ValueError):
        peer_of(certificate(extension))


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("/ip4/10.0.0.1/tcp/4000/p2p/x", "10.0.0.1", 4000),
        ("/ip4/10.0.0.1/udp/4000/quic-v1", "10.0.0.1", 0),
        ("/ip6/::1/tcp/5", "::1", 5),
        ("/ip6/::ffff:1.2.3.4/tcp/5", "1.2.3.4", 5),
        ("/ip4/10.0.0.1/tcp/4000/p2p/relay/p2p-circuit", "", 0),
        ("/p2p-circuit", "", 0),
        ("/dns4/example.org/tcp/80", "", 80),
        ("/ip4/999.0.0.1/tcp/x", "", 0),
        ("/ip4", "", 0),
        ("", "", 0),
    ],
)
def test_host_and_port_are_read_from_plain_addresses_only(address: str, host: str, port: int) -> None:
    assert (host_in(address), tcp_port_in(address)) == (host, port)


def test_of_those_who_were_dialled_nothing_is_remembered() -> None:
    """A backbone dials everybody who comes, for weeks."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 100)
        writer.close()

    async def main() -> float:
        async with await asyncio.start_server(babble, "0.0.0.0", 0) as server:
            port = server.sockets[0].getsockname()[1]

            async def dial(numbers: range) -> int:
                for number in numbers:
                    with pytest.raises(PeerUnreachable, match=r"does not speak libp2p"):
                        await who_answers(f"127.0.{number // 250}.{number % 250 + 1}", port, timeout_s=60.0)
                gc.collect()
                return sys.getallocatedblocks()

            return -await dial(range(200)) + await dial(range(200, 600))

    assert uvloop.run(main()) < 400, "uvloop's own cache takes four blocks for each"
