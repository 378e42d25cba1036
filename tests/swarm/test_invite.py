"""Invites survive copying, and nothing else."""

import base64
import hashlib
import string
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from collab.errors import InviteError
from collab.swarm.identity import Identity
from collab.swarm.invite import PREFIX, Invite, read_invite, write_invite
from collab.types import RUN_ID

OWNER, STRANGER = Identity.from_seed(b"o" * 32), Identity.from_seed(b"s" * 32)
INVITE = Invite(
    run_id="my-run",
    fingerprint="f" * 64,
    owner=OWNER.peer_id,
    addresses=("/ip4/10.0.0.1/tcp/4001/p2p/" + OWNER.peer_id, "/dns4/example.org/tcp/31/p2p/" + OWNER.peer_id),
)
WORD = write_invite(INVITE, OWNER)
ALPHABET = string.ascii_letters + string.digits + "-_"


def forged(content: Any, signer: Identity = OWNER) -> str:
    """A word with a right checksum around any content."""
    body: bytes = msgpack.packb(content)
    return sealed([body, signer.sign(body)])


def sealed(parts: Any) -> str:
    signed: bytes = msgpack.packb(parts)
    return PREFIX + base64.urlsafe_b64encode(signed + hashlib.sha256(signed).digest()[:4]).decode().rstrip("=")


def test_an_invite_is_read_as_it_was_written() -> None:
    assert read_invite(WORD) == INVITE
    assert set(WORD) <= set(ALPHABET)


@given(
    run_id=st.from_regex(RUN_ID, fullmatch=True),
    fingerprint=st.text(max_size=10),
    addresses=st.lists(st.text(max_size=30), max_size=4),
)
def test_any_invite_is_read_as_it_was_written(run_id: str, fingerprint: str, addresses: list[str]) -> None:
    invite = Invite(run_id=run_id, fingerprint=fingerprint, owner=OWNER.peer_id, addresses=tuple(addresses))
    assert read_invite(write_invite(invite, OWNER)) == invite


@given(data=st.data())
def test_spaces_and_line_breaks_of_a_mail_do_no_harm(data: st.DataObject) -> None:
    text = WORD
    for _ in range(4):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.sampled_from([" ", "\n", "\r\n  ", "\t", "\u00a0"])) + text[place:]
    assert read_invite(f"  {text}\n") == INVITE


def test_no_single_changed_character_goes_unnoticed() -> None:
    for place, right in enumerate(WORD):
        for wrong in ("A", "b", "7", "_", chr(ord(right) ^ 1), ALPHABET[(ALPHABET.find(right) + 17) % 64]):
            if wrong == right:
                continue
            with pytest.raises(InviteError) as caught:
                read_invite(WORD[:place] + wrong + WORD[place + 1 :])
            assert caught.value.hint


def test_no_cut_invite_is_read() -> None:
    for length in range(len(WORD)):
        with pytest.raises(InviteError):
            read_invite(WORD[:length])
        if length:
            with pytest.raises(InviteError):
                read_invite(WORD[length:])


def test_two_swapped_or_one_doubled_character_is_noticed() -> None:
    for place in range(len(WORD) - 1):
        swapped = WORD[:place] + WORD[place + 1] + WORD[place] + WORD[place + 2 :]
        doubled = WORD[: place + 1] + WORD[place] + WORD[place + 1 :]
        for text in {swapped, doubled} - {WORD}:
            with pytest.raises(InviteError):
                read_invite(text)


@given(text=st.text(max_size=80))
def test_any_other_text_is_an_invite_error(text: str) -> None:
    for candidate in (text, PREFIX + text):
        with pytest.raises(InviteError):
            read_invite(candidate)


def test_an_invite_that_its_owner_did_not_sign_is_refused() -> None:
    content = [INVITE.run_id, INVITE.fingerprint, INVITE.owner, list(INVITE.addresses), []]
    assert read_invite(forged(content)) == INVITE
    with pytest.raises(InviteError, match="not signed"):
        read_invite(forged(content, STRANGER))


@pytest.mark.parametrize("run_id", ["../../x", "/abs/path", "..", "", "a/b", "my-run\n", "\x1b[2J", "x" * 41])
def test_an_invite_to_what_no_run_is_called_names_no_directory(run_id: str) -> None:
    content = [run_id, INVITE.fingerprint, INVITE.owner, list(INVITE.addresses), []]
    with pytest.raises(InviteError, match="no run can be called"):
        read_invite(forged(content))


@pytest.mark.parametrize(
    "content",
    [
        *([], 5, None, "text", {}, ["r", "f"], ["r", "f", OWNER.peer_id, []]),
        *(["r", "f", OWNER.peer_id, 5, []], ["r", "f", OWNER.peer_id, [], [], "more"]),
        *(["r", "f", OWNER.peer_id, [], 5], ["r", "f", OWNER.peer_id, [], [b"grant"]]),
        *(["r", "f", OWNER.peer_id, [], [b"grant", b"seed"]], ["r", "f", OWNER.peer_id, [], [b"grant", bytes(32)]]),
    ],
)
def test_an_invite_with_other_content_is_refused(content: Any) -> None:
    with pytest.raises(InviteError):
        read_invite(forged(content))


@pytest.mark.parametrize(
    "parts",
    [
        [],
        5,
        [msgpack.packb(["r", "f", OWNER.peer_id, []]), 5],
        [msgpack.packb(["r", "f", OWNER.peer_id, []]), "text"],
        [msgpack.packb(["r", "f", OWNER.peer_id, []]), None],
        [msgpack.packb(["r", "f", OWNER.peer_id, []]), b""],
        ["text", OWNER.sign(b"text")],
        [5, OWNER.sign(b"text")],
        [None, None],
    ],
)
def test_an_invite_with_a_garbled_signature_is_refused(parts: Any) -> None:
    with pytest.raises(InviteError):
        read_invite(sealed(parts))


def test_nobody_signs_an_invite_in_another_s_name() -> None:
    with pytest.raises(ValueError, match="owner"):
        write_invite(INVITE, STRANGER)
