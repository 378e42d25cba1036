"""Who may take part: grants, passes, devices, bans."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from collab.errors import BadMessage
from collab.swarm.access import (
    CLOCK_ERROR_S,
    MAX_DEVICES,
    MAX_PASS_BYTES,
    PASS_LIFE_S,
    Credentials,
    Grant,
    Papers,
    pack_grant,
    pack_pass,
    read_pass,
)
from collab.swarm.admission import GUEST, MAX_GONE, MAX_GUESTS, MAX_HOLDERS, Admission, House
from collab.swarm.identity import Identity
from collab.swarm.statements import Ban
from collab.types import PeerId, Role
from tests.swarm.people import PEOPLE

OWNER, INVITE, OTHER = PEOPLE[0], PEOPLE[1], PEOPLE[2]
DEVICES = [Identity.from_seed(bytes([200 + number] * 32)).peer_id for number in range(8)]
F = "f" * 64
NOW = 1_000_000.0
GRANT = Grant(fingerprint=F, key=INVITE.peer_id, person="Anna", devices=2, expires_at=NOW + 1e6, role=Role.TRAINER)


def papers(
    grant: Grant = GRANT, key: Identity = INVITE, owner: Identity = OWNER, *, are_guests: bool = False
) -> Papers:
    return Papers(grant=pack_grant(grant, owner), key=key, are_guests=are_guests)


class Gate:
    """One peer's admission, at a time of the test's."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.now, self.bans = NOW, dict[str, Ban]()
        house = House(fingerprint=F, owner=OWNER.peer_id, is_open=is_open, ban_of=lambda who, now: self.bans.get(who))
        self.admission = Admission(house, lambda: self.now)

    def reason(self, device: PeerId, credential: bytes = b"") -> str:
        barred = self.admission.barred(device, credential)
        return barred.reason if barred is not None else ""

    def shows(self, device: PeerId, *, since: float | None = None, **changes: Any) -> str:
        credential = pack_pass(papers(**changes), device, since=self.now if since is None else since, now=self.now)
        return self.reason(device, credential)


def test_whoever_was_invited_comes_in_and_nobody_else() -> None:
    gate = Gate()
    assert gate.reason(DEVICES[0]) == "not_invited"
    assert gate.shows(DEVICES[0]) == ""
    assert gate.reason(DEVICES[0]) == "", "a pass is shown once, and counts until it ends"
    assert gate.reason(DEVICES[1]) == "not_invited"


def test_in_an_open_run_everybody_comes_in_but_who_is_banned() -> None:
    gate = Gate(is_open=True)
    assert gate.reason(DEVICES[0]) == ""
    gate.bans[DEVICES[0]] = Ban(who=DEVICES[0], reason="spam")
    assert gate.reason(DEVICES[0]) == "banned"


def test_in_an_open_run_a_pass_that_has_ended_is_no_worse_than_none() -> None:
    gate, grant = Gate(is_open=True), replace(GRANT, role=Role.BACKBONE)
    assert gate.shows(DEVICES[0], grant=grant) == ""
    gate.now += PASS_LIFE_S
    assert gate.reason(DEVICES[0]) == ""
    gate.now = GRANT.expires_at
    assert gate.shows(DEVICES[0], grant=grant) == ""
    assert not gate.admission.is_vouched_backbone(DEVICES[0])
    gate.bans[INVITE.peer_id] = Ban(who=INVITE.peer_id, reason="revoked")
    assert gate.reason(DEVICES[0]) == "banned"


@pytest.mark.parametrize("until_s", [1e12, 1e300])
def test_a_ban_until_a_year_that_no_calendar_has_bans_and_breaks_nothing(until_s: float) -> None:
    gate = Gate(is_open=True)
    gate.bans[DEVICES[0]] = Ban(who=DEVICES[0], reason="spam", until_s=until_s)
    assert gate.reason(DEVICES[0]) == "banned"


def test_a_pass_is_its_own_devices_and_nobody_elses() -> None:
    gate = Gate()
    stolen = pack_pass(papers(), DEVICES[0], since=NOW, now=NOW)
    assert gate.reason(DEVICES[1], stolen) == "bad_pass"


@pytest.mark.parametrize(
    "forged",
    [
        papers(owner=OTHER),
        papers(key=OTHER),
        papers(grant=replace(GRANT, fingerprint="e" * 64)),
        papers(grant=replace(GRANT, devices=0)),
        papers(grant=replace(GRANT, devices=10**6)),
        papers(grant=replace(GRANT, person="x" * 100)),
        papers(grant=replace(GRANT, role=Role.AUXILIARY)),
    ],
)
def test_papers_that_the_owner_did_not_give_like_that_are_refused(forged: Papers) -> None:
    gate = Gate()
    assert gate.reason(DEVICES[0], pack_pass(forged, DEVICES[0], since=NOW, now=NOW)) == "bad_pass"


@pytest.mark.parametrize("data", [b"", b"x", msgpack.packb(5), msgpack.packb([1, 2]), msgpack.packb([b"", b""])])
def test_nonsense_is_no_pass(data: bytes) -> None:
    with pytest.raises(BadMessage):
        read_pass(data, F, OWNER.peer_id)


def test_a_long_pass_is_not_read() -> None:
    with pytest.raises(BadMessage, match="limit"):
        read_pass(bytes(MAX_PASS_BYTES + 1), F, OWNER.peer_id)


def test_an_invite_ends() -> None:
    gate = Gate()
    assert gate.shows(DEVICES[0]) == ""
    gate.now = GRANT.expires_at
    assert gate.shows(DEVICES[0]) == "invite_expired"


def test_a_revoked_invite_is_worthless_at_once() -> None:
    gate = Gate()
    assert gate.shows(DEVICES[0]) == ""
    gate.bans[INVITE.peer_id] = Ban(who=INVITE.peer_id, reason="revoked")
    assert gate.reason(DEVICES[0]) == "banned"
    assert gate.shows(DEVICES[1]) == "banned"


def test_a_pass_ends_and_one_from_the_future_is_none() -> None:
    gate = Gate()
    assert gate.shows(DEVICES[0]) == ""
    gate.now += PASS_LIFE_S
    assert gate.reason(DEVICES[0]) == "pass_expired"
    early = pack_pass(papers(), DEVICES[1], since=gate.now + 100, now=gate.now + 100)
    assert gate.reason(DEVICES[1], early) == "pass_expired"


def test_a_pass_cannot_be_made_to_last_longer() -> None:
    gate = Gate()
    long_lived = pack_pass(papers(), DEVICES[0], since=NOW, now=NOW + 10 * PASS_LIFE_S)
    assert gate.reason(DEVICES[0], long_lived) == "pass_expired"


def test_an_invite_is_for_so_many_devices_and_the_first_ones_keep_their_places() -> None:
    gate = Gate()
    assert [gate.shows(device, since=NOW + number) for number, device in enumerate(DEVICES[:2])] == ["", ""]
    gate.now += 10
    assert gate.shows(DEVICES[2]) == "too_many_devices"
    assert "in use on 2 devices" in getattr(gate.admission.barred(DEVICES[2], b""), "text", "")
    assert [gate.reason(device) for device in DEVICES[:2]] == ["", ""]


def test_a_device_that_vanished_frees_its_place_when_its_pass_ends() -> None:
    gate = Gate()
    gate.shows(DEVICES[0], since=NOW)
    gate.shows(DEVICES[1], since=NOW)
    gate.now += PASS_LIFE_S / 2
    gate.shows(DEVICES[0], since=NOW)  # renewed; the other one is a runtime that was wiped
    assert gate.shows(DEVICES[2]) == "too_many_devices"
    gate.now += PASS_LIFE_S / 2
    assert gate.shows(DEVICES[2]) == ""
    assert gate.reason(DEVICES[0]) == ""


def test_a_device_that_says_goodbye_frees_its_place_at_once() -> None:
    gate = Gate()
    gate.shows(DEVICES[0], since=NOW - 2)
    gate.shows(DEVICES[1], since=NOW - 1)
    gate.admission.release(DEVICES[0])
    assert gate.shows(DEVICES[2]) == ""


def test_endless_devices_of_one_invite_take_bounded_room_and_push_out_only_each_other() -> None:
    gate = Gate()
    assert gate.shows(DEVICES[0], since=NOW - 5) == ""
    others = papers(replace(GRANT, key=OTHER.peer_id, person="Bob"), key=OTHER)
    for number in range(3 * MAX_HOLDERS):
        device = Identity.from_seed(number.to_bytes(32, "big")).peer_id
        gate.reason(device, pack_pass(others, device, since=NOW - number, now=NOW))
    assert gate.reason(DEVICES[0]) == ""
    assert len(gate.admission._passes) <= MAX_HOLDERS + 1


def test_a_device_renews_its_pass_before_it_ends_and_keeps_its_place() -> None:
    now = NOW
    credentials = Credentials(papers(), DEVICES[0], lambda: now)
    first = read_pass(credentials.current(), F, OWNER.peer_id)
    now += PASS_LIFE_S / 2
    second = read_pass(credentials.current(), F, OWNER.peer_id)
    assert (first.since, second.since) == (NOW, NOW)
    assert second.expires_at == now + PASS_LIFE_S
    now -= 10 * PASS_LIFE_S  # the clock was wrong, and is corrected
    assert read_pass(credentials.current(), F, OWNER.peer_id).since <= now + CLOCK_ERROR_S


def test_devices_of_one_invite_are_one_voice_and_only_the_owner_makes_backbones() -> None:
    gate = Gate(is_open=True)
    gate.shows(DEVICES[0])
    gate.shows(DEVICES[1])
    assert {gate.admission.voice_of(device) for device in DEVICES[:2]} == {INVITE.peer_id}
    assert gate.admission.voice_of(DEVICES[3]) == DEVICES[3]
    backbone = papers(replace(GRANT, key=OTHER.peer_id, role=Role.BACKBONE), key=OTHER)
    gate.reason(DEVICES[4], pack_pass(backbone, DEVICES[4], since=NOW, now=NOW))
    assert [gate.admission.is_vouched_backbone(device) for device in DEVICES[:5]] == [False] * 4 + [True]


def test_what_a_backbone_has_signed_counts_after_its_goodbye_and_its_death_but_not_after_its_ban() -> None:
    for is_dead in (False, True):
        gate, grant = Gate(), replace(GRANT, role=Role.BACKBONE)
        assert not gate.admission.was_vouched_backbone(DEVICES[0])
        assert gate.shows(DEVICES[0], grant=grant) == ""
        assert gate.shows(DEVICES[1]) == ""
        assert gate.shows(DEVICES[2], grant=grant, are_guests=True) == GUEST
        if is_dead:
            gate.now += PASS_LIFE_S
        else:
            gate.admission.release(DEVICES[0])
            gate.admission.release(DEVICES[1])
        assert not gate.admission.is_vouched_backbone(DEVICES[0]), "it is not here"
        assert [gate.admission.was_vouched_backbone(device) for device in DEVICES[:3]] == [True, False, False]
        gate.bans[DEVICES[0]] = Ban(who=DEVICES[0], reason="spam")
        assert not gate.admission.was_vouched_backbone(DEVICES[0])
        gate.bans = {INVITE.peer_id: Ban(who=INVITE.peer_id, reason="revoked")}
        assert not gate.admission.was_vouched_backbone(DEVICES[0])
        gate.bans.clear()
        gate.now = GRANT.expires_at
        assert not gate.admission.was_vouched_backbone(DEVICES[0])


def test_of_backbones_that_have_left_the_last_are_remembered() -> None:
    gate, grant = Gate(), replace(GRANT, role=Role.BACKBONE)
    devices = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(MAX_GONE + 1)]
    for device in devices:
        gate.shows(device, grant=grant)
        gate.admission.release(device)
    assert [gate.admission.was_vouched_backbone(device) for device in devices] == [False] + [True] * MAX_GONE


def test_who_looks_only_takes_no_devices_place_and_gets_no_further_than_looking() -> None:
    gate = Gate()
    for device in DEVICES[:2]:
        assert gate.shows(device, are_guests=True) == GUEST
    gate.now += 10
    assert [gate.shows(device) for device in DEVICES[2:4]] == ["", ""], "both places are free"
    assert gate.shows(DEVICES[4]) == "too_many_devices"
    assert gate.shows(DEVICES[4], are_guests=True) == GUEST, "looking goes on when they are taken"
    assert not gate.admission.is_vouched_backbone(DEVICES[4])


def test_a_backbones_guest_is_no_backbone() -> None:
    gate, grant = Gate(is_open=True), replace(GRANT, role=Role.BACKBONE)
    assert gate.shows(DEVICES[0], grant=grant, are_guests=True) == GUEST
    assert not gate.admission.is_vouched_backbone(DEVICES[0])
    assert gate.shows(DEVICES[1], grant=grant) == ""
    assert gate.admission.is_vouched_backbone(DEVICES[1])


def test_guests_of_one_invite_are_few_at_a_time_and_push_out_no_device() -> None:
    gate = Gate()
    assert gate.shows(DEVICES[0]) == ""
    reasons = []
    for number in range(2 * MAX_HOLDERS):
        device = Identity.from_seed(number.to_bytes(32, "big")).peer_id
        reasons.append(gate.shows(device, since=NOW + number / 1000, are_guests=True))
    assert reasons[:MAX_GUESTS] == [GUEST] * MAX_GUESTS
    assert GUEST not in reasons[MAX_GUESTS:]
    assert reasons[MAX_GUESTS] == "too_many_guests"
    assert len(gate.admission._passes) <= MAX_HOLDERS + 1
    assert gate.reason(DEVICES[0]) == ""
    gate.now += PASS_LIFE_S
    assert gate.shows(DEVICES[5], are_guests=True) == GUEST


def test_a_guest_is_banned_with_its_invite_and_its_invite_ends() -> None:
    gate = Gate()
    gate.bans[INVITE.peer_id] = Ban(who=INVITE.peer_id, reason="revoked")
    assert gate.shows(DEVICES[0], are_guests=True) == "banned"
    gate.bans.clear()
    gate.now = GRANT.expires_at
    assert gate.shows(DEVICES[0], are_guests=True) == "invite_expired"


def test_as_many_devices_come_in_as_the_largest_invite_is_for() -> None:
    gate, grant = Gate(), replace(GRANT, devices=MAX_DEVICES)
    crowd = [Identity.from_seed(number.to_bytes(32, "big")).peer_id for number in range(MAX_DEVICES + 1)]
    reasons = [gate.shows(device, since=NOW + number / 1000, grant=grant) for number, device in enumerate(crowd)]
    assert reasons == [""] * MAX_DEVICES + ["too_many_devices"]


def test_devices_that_vanished_without_a_word_do_not_keep_later_ones_out() -> None:
    """A hosted notebook has a new key each day."""
    gate = Gate()
    for number in range(2 * MAX_HOLDERS):
        device = Identity.from_seed(number.to_bytes(32, "big")).peer_id
        assert gate.shows(device) == "", f"day {number + 1}"
        gate.now += PASS_LIFE_S
