"""Keys: kept private, the same after a restart, and libp2p's own."""

import os
from pathlib import Path

import pytest
from hivemind.p2p import PeerID
from hivemind.proto import crypto_pb2

from collab.errors import ConfigError
from collab.swarm.identity import Identity, is_peer_id, is_signed_by, load_or_create_identity
from collab.types import PeerId

ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)


def test_a_new_identity_is_kept_in_a_file_that_only_its_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "identity.key"
    load_or_create_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_file_is_private_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        load_or_create_identity(tmp_path / "identity.key")
    finally:
        os.umask(before)
    assert (tmp_path / "identity.key").stat().st_mode & 0o777 == 0o600


def test_a_restarted_peer_has_the_same_id(tmp_path: Path) -> None:
    first = load_or_create_identity(tmp_path / "identity.key")
    content = (tmp_path / "identity.key").read_bytes()
    second = load_or_create_identity(tmp_path / "identity.key")
    assert first.peer_id == second.peer_id
    assert (tmp_path / "identity.key").read_bytes() == content
    assert is_signed_by(first.peer_id, b"text", second.sign(b"text"))


def test_two_new_identities_differ(tmp_path: Path) -> None:
    assert load_or_create_identity(tmp_path / "1").peer_id != load_or_create_identity(tmp_path / "2").peer_id


def test_an_identity_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    load_or_create_identity(path)
    path.chmod(0o644)
    load_or_create_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_libp2p_finds_the_same_peer_id_in_the_key_file(tmp_path: Path) -> None:
    identity = load_or_create_identity(tmp_path / "identity.key")
    file = crypto_pb2.PrivateKey.FromString((tmp_path / "identity.key").read_bytes())
    assert file.key_type == crypto_pb2.Ed25519
    assert len(file.data) == 64
    public = crypto_pb2.PublicKey(key_type=crypto_pb2.Ed25519, data=file.data[32:]).SerializeToString()
    theirs = PeerID(bytes((0, len(public))) + public)  # the identity multihash: short keys are their own
    assert theirs.to_base58() == identity.peer_id
    assert PeerID.from_base58(identity.peer_id) == theirs


def test_the_example_key_of_the_libp2p_specification_is_read_as_it_is(tmp_path: Path) -> None:
    public = "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
    content = bytes.fromhex("080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d" + public)
    (tmp_path / "identity.key").write_bytes(content)
    identity = load_or_create_identity(tmp_path / "identity.key")
    assert identity.to_libp2p() == content
    assert identity.peer_id.startswith("12D3KooW")


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x01\x12\x40", bytes(68), b"\x08\x00\x12\x40" + bytes(64)])
def test_a_file_that_is_no_key_is_an_error_that_names_it_and_it_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"identity\.key") as caught:
        load_or_create_identity(path)
    assert caught.value.hint
    assert path.read_bytes() == content


@pytest.mark.parametrize("place", [0, 3, 4, 20, 35, 36, 50, 67])
def test_a_key_file_with_one_flipped_bit_is_an_error(tmp_path: Path, place: int) -> None:
    path = tmp_path / "identity.key"
    content = bytearray(ALICE.to_libp2p())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        load_or_create_identity(path)


def test_a_directory_in_place_of_the_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        load_or_create_identity(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError):
        load_or_create_identity(tmp_path / "file" / "identity.key")


def test_a_signature_holds_for_its_signer_and_its_text_only() -> None:
    signature = ALICE.sign(b"text")
    assert is_signed_by(ALICE.peer_id, b"text", signature)
    assert not is_signed_by(BOB.peer_id, b"text", signature)
    assert not is_signed_by(ALICE.peer_id, b"texts", signature)
    assert not is_signed_by(ALICE.peer_id, b"text", signature[:-1])
    assert not is_signed_by(ALICE.peer_id, b"text", b"")


@pytest.mark.parametrize("peer", ["", "0OIl", "abc", "ü", ALICE.peer_id + "x", ALICE.peer_id[:-1], "1" * 52])
def test_a_malformed_peer_id_has_signed_nothing(peer: str) -> None:
    assert not is_signed_by(PeerId(peer), b"text", ALICE.sign(b"text"))


def test_a_name_as_long_as_a_message_is_no_id_and_is_not_decoded_for_hours() -> None:
    assert not is_signed_by(PeerId("2" * 10_000_000), b"text", ALICE.sign(b"text"))
    assert not is_peer_id("2" * 10_000_000)
