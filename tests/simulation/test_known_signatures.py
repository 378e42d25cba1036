"""What one peer of a process has verified, the others need not verify again; nothing is believed that nobody has."""

from collab.simulation import known_signatures
from collab.simulation.known_signatures import KnownSignatures, SharingKeys
from collab.swarm.identity import Identity
from collab.types import PeerId

ALICE, BOB = Identity.from_seed(b"a" * 32), Identity.from_seed(b"b" * 32)
WORD = b"a word"


class Counting:
    """Keys that count how often they are asked."""

    def __init__(self, identity: Identity) -> None:
        self.sign, self._identity = identity.sign, identity
        self.checks = 0

    def is_signed_by(self, peer: PeerId, content: bytes, signature: bytes) -> bool:
        self.checks += 1
        return self._identity.is_signed_by(peer, content, signature)


def test_a_word_that_many_read_is_verified_once_and_every_other_word_by_itself() -> None:
    known, keys = KnownSignatures(), [Counting(ALICE), Counting(BOB)]
    anna, ben = (SharingKeys(each, known) for each in keys)
    signature = anna.sign(WORD)
    assert anna.is_signed_by(ALICE.peer_id, WORD, signature)
    assert ben.is_signed_by(ALICE.peer_id, WORD, signature)
    assert [each.checks for each in keys] == [1, 0]
    assert not ben.is_signed_by(ALICE.peer_id, b"another", signature)
    assert not ben.is_signed_by(BOB.peer_id, WORD, signature)
    assert not ben.is_signed_by(ALICE.peer_id, WORD, bytes(64))
    assert not ben.is_signed_by(ALICE.peer_id, WORD, bytes(64)), "what was not good does not become so"
    assert keys[1].checks == 4


def test_only_so_many_are_remembered_and_those_last_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(known_signatures, "REMEMBERED", 2)
    known, keys = KnownSignatures(), Counting(BOB)
    ben = SharingKeys(keys, known)
    signed = [(word, ALICE.sign(word)) for word in (b"one", b"two", b"three")]
    for word, signature in (signed[0], signed[1], signed[0], signed[2], signed[0]):
        assert ben.is_signed_by(ALICE.peer_id, word, signature)
    assert keys.checks == 3
    assert ben.is_signed_by(ALICE.peer_id, *signed[1])
    assert keys.checks == 4
