"""Which snapshot a backbone should have now."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from collab.averaging.agreement import CommitRecord
from collab.config import Checkpoints
from collab.swarm.backbone_records import BackboneRecord, Publication
from collab.swarm.lease import Claim
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, PeerId
from peers.due import Due, due_snapshot, offered_snapshot
from tests.averaging.records import make_record
from tests.fakes import NOW
from tests.swarm.people import PEOPLE, backbone, record

EVERY_5 = Checkpoints(every_epochs=5)


def due(
    *others: PeerRecord, records: tuple[BackboneRecord, ...] = (), until: int | None = None
) -> tuple[int, Due] | None:
    return due_snapshot(SwarmView(others, NOW), records, EVERY_5, until)


def peers(*numbers: int) -> tuple[Any, ...]:
    return tuple(PEOPLE[number].peer_id for number in numbers)


def test_while_trainers_go_on_one_of_every_few_epochs_is_due_from_those_who_have_passed_it() -> None:
    found = due(record(0, epoch=12), record(1, epoch=12), record(2, epoch=9))
    assert found is not None
    assert found[0] == 10
    assert found[1].donors == peers(0, 1)


def test_the_last_epoch_is_due_whatever_its_number() -> None:
    found = due(record(0, epoch=12), until=12)
    assert found is not None
    assert found[0] == 12


def test_where_nobody_has_gone_on_whatever_is_newest_is_due() -> None:
    found = due(record(0, epoch=12, has_seat=False), record(1, epoch=13, has_seat=False, state=PeerState.SYNCING))
    assert found == (13, Due(13, peers(1)))


def test_what_another_backbone_keeps_is_due_if_the_swarm_has_not_left_it() -> None:
    assert due(backbone(7, checkpoint_epoch=17)) == (17, Due(17, peers(7)))
    later = due(record(0, epoch=12), backbone(7, checkpoint_epoch=17))
    assert later is not None
    assert later[0] == 10
    same = due(record(0, epoch=12), backbone(7, checkpoint_epoch=10))
    assert same is not None
    assert same[1].donors == peers(7, 0)


def test_the_bytes_that_were_published_are_wanted_under_the_latest_tenure() -> None:
    first = Publication(epoch=10, lineage=Lineage("l"), digest="a" * 64, term=1, holder=PEOPLE[6].peer_id)
    later = replace(first, digest="b" * 64, term=2)
    records = tuple(
        BackboneRecord(fingerprint="f", claim=Claim(peer=PEOPLE[6].peer_id, said_at=NOW), published=one)
        for one in (later, first)
    )
    found = due(record(0, epoch=12), records=records)
    assert found is not None
    assert found[1].published == later


def test_without_anybody_nothing_is_due() -> None:
    assert due() is None
    assert due(backbone(7)) is None


def offered(
    epoch: int,
    *others: PeerRecord,
    rounds: Sequence[CommitRecord] = (),
    left: dict[PeerId, int] | None = None,
    one_person: tuple[int, ...] = (),
) -> Due | None:
    """Of the first peer."""
    same = peers(*one_person)
    view = SwarmView(others, NOW, left or {})
    return offered_snapshot(PEOPLE[0].peer_id, epoch, view, rounds, lambda peer: same[0] if peer in same else peer)


def test_who_was_in_the_round_that_made_a_state_may_hand_it_over_and_no_other_history() -> None:
    made = make_record(contributors=((PEOPLE[0].peer_id, 8.0),), epoch=11)
    undone = replace(made, lineage=Lineage("rolled back"))
    found = offered(12, record(1, epoch=11), record(2, epoch=12), rounds=[undone, made])
    assert found == Due(12, peers(0, 2), lineage=made.next_lineage())


@pytest.mark.parametrize("epoch", [13, 10**9])
def test_what_is_far_beyond_the_rounds_that_were_seen_is_not_taken_also_of_who_is_alone(epoch: int) -> None:
    rounds = [make_record(contributors=((PEOPLE[0].peer_id, 8.0),), epoch=epoch) for epoch in (10, 11)]
    alone = record(0, epoch=epoch, state=PeerState.LEAVING)
    assert offered(epoch, alone, rounds=rounds) == (Due(13, peers(0)) if epoch == 13 else None)
    assert offered(epoch, alone) == Due(epoch, peers(0)), "nobody knows better"


def test_without_rounds_the_run_is_where_most_trainers_are_or_were_when_they_left() -> None:
    others = record(0, epoch=12), record(1, epoch=12), record(2, epoch=11), record(3, epoch=11)
    assert offered(12, *others) == Due(12, peers(0, 1))
    assert offered(12, *others, record(4, epoch=11)) is None
    assert offered(12, *others, record(4, epoch=11), one_person=(2, 3, 4)) == Due(12, peers(0, 1))
    assert offered(12, *others[1:], left={PEOPLE[0].peer_id: 12}) == Due(12, peers(0, 1))
    assert offered(12, *others[1:]) is None, "a stranger"


def test_where_nobody_has_gone_on_the_newest_is_taken() -> None:
    at_rest = [record(number, epoch=11, has_seat=False) for number in (1, 2, 3)]
    assert offered(12, record(0, epoch=12, has_seat=False), *at_rest) == Due(12, peers(0))


def test_what_is_beyond_the_rounds_that_were_seen_is_due_if_somebody_known_has_it() -> None:
    rounds = [make_record(contributors=((PEOPLE[0].peer_id, 8.0),), epoch=epoch) for epoch in (10, 11)]

    def asked(*others: PeerRecord, trusted: tuple[int, ...] = ()) -> int | None:
        named = peers(*trusted)
        view = SwarmView(others, NOW)
        found = due_snapshot(view, (), EVERY_5, None, rounds=rounds, trusts=lambda peer: peer in named)
        return found[0] if found is not None else None

    assert asked(record(0, epoch=27)) == 25, "we were away"
    assert asked(record(1, epoch=10**9)) is None, "a stranger, when all others have left"
    assert asked(record(1, epoch=10**9, has_seat=False)) is None
    assert asked(backbone(7, checkpoint_epoch=10**9)) is None, "anybody may say to be one"
    assert asked(backbone(7, checkpoint_epoch=30), trusted=(7,)) == 30
    assert asked(record(1, epoch=12)) == 10, "who came later has what the others had"
