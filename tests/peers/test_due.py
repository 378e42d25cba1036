"""Which snapshot a backbone should have now."""

from dataclasses import replace
from typing import Any

from collab.config import Checkpoints
from collab.swarm.backbone_records import BackboneRecord, Publication
from collab.swarm.lease import Claim
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage
from peers.due import Due, due_snapshot
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
