"""Whom an organiser means: ids whole and in part, names, persons, and what is none of these."""

from dataclasses import replace

import pytest

from collab.errors import ConfigError
from collab.swarm.progress import SwarmView
from collab.swarm.statements import Ban
from collab.types import PeerId
from peers.inviting import Invited, Users
from peers.whom import find_bans, find_keys, find_peer
from tests.fakes import NOW
from tests.swarm.people import PEOPLE, record

HERE, OTHER, GONE = (PEOPLE[number].peer_id for number in range(3))
VIEW = SwarmView((replace(record(0), name="anna"), replace(record(1), name="bob")), NOW)
INVITE = "collab2-" + "A" * 300


@pytest.mark.parametrize("text", [HERE, HERE[:12], HERE[-8:], f"…{HERE[-6:]}", "anna"])
def test_a_peer_that_is_here_is_meant_by_its_id_a_part_of_it_or_its_name(text: str) -> None:
    assert find_peer(VIEW, text) == HERE


def test_one_that_has_gone_is_meant_by_its_whole_id_only() -> None:
    assert find_peer(VIEW, GONE) == GONE
    with pytest.raises(ConfigError, match="nobody is meant") as refused:
        find_peer(VIEW, GONE[:20])
    assert "whole id" in refused.value.hint


@pytest.mark.parametrize("text", ["a" * 50, GONE[:-1], GONE + "1", GONE + " ", GONE[:-1] + "0", "ä" * 52])
def test_a_long_text_is_no_id(text: str) -> None:
    with pytest.raises(ConfigError, match="no peer id"):
        find_peer(VIEW, text)


def test_an_invite_is_not_taken_for_an_id_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="this is an invite") as refused:
        find_peer(VIEW, INVITE)
    assert "AAA" not in str(refused.value)
    assert "invite DIR --list" in refused.value.hint


def test_where_two_can_be_meant_both_are_named() -> None:
    twins = SwarmView(tuple(replace(one, name="twin") for one in VIEW.records), NOW)
    for text in ("twin", HERE[:8]):
        with pytest.raises(ConfigError, match="whom do you mean") as refused:
            find_peer(twins, text)
        assert HERE in refused.value.message
        assert OTHER in refused.value.message


def test_a_name_is_shown_without_what_a_terminal_would_obey() -> None:
    nasty = SwarmView(tuple(replace(one, name="\x1b[2J") for one in VIEW.records), NOW)
    with pytest.raises(ConfigError, match="whom do you mean") as refused:
        find_peer(nasty, "\x1b[2J")
    assert "\x1b" not in str(refused.value)


BANS = [Ban(who=GONE, reason="noise", name="carl"), Ban(who=HERE, reason="older than names")]


@pytest.mark.parametrize("text", [GONE, GONE[:12], GONE[-8:], f"…{GONE[-6:]}", "carl"])
def test_who_is_banned_and_gone_is_meant_by_its_id_a_part_of_it_or_its_name_then(text: str) -> None:
    assert find_bans(BANS, [], VIEW, text) == BANS[:1]


def test_who_is_banned_without_a_name_and_here_still_is_meant_by_its_name_now() -> None:
    assert find_bans(BANS, [], VIEW, "anna") == BANS[1:]


def test_a_person_is_meant_with_all_invites_that_are_banned() -> None:
    ids = [PEOPLE[number].peer_id for number in (4, 5, 6)]
    people = [
        Invited(id=one, person="Anna", devices=1, role="trainer", made_at=0.0, expires_at=1.0) for one in ids
    ]
    bans = [*BANS, *(Ban(who=one, reason="revoked") for one in ids[:2])]
    assert find_bans(bans, people, VIEW, "Anna") == bans[2:]
    assert find_bans(bans, people, VIEW, ids[1]) == bans[3:]


@pytest.mark.parametrize("text", ["bob", OTHER, "", INVITE])
def test_who_is_not_banned_is_not_found_among_the_bans(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_bans(BANS, [], VIEW, text)
    if text != INVITE:
        assert f"who is banned: {GONE} (carl), {HERE} (anna)" in refused.value.hint


def test_of_two_that_were_banned_under_one_name_both_are_named() -> None:
    bans = [Ban(who=PeerId(one), reason="noise", name="twin") for one in (GONE, OTHER)]
    with pytest.raises(ConfigError, match="whom do you mean") as refused:
        find_bans(bans, [], VIEW, "twin")
    assert GONE in refused.value.message
    assert OTHER in refused.value.message


ANNAS = [
    Invited(id=PEOPLE[at].peer_id, person="anna", devices=1, role="trainer", made_at=0.0, expires_at=1.0)
    for at in (4, 5)
]
INVITES = {row.id: "anna" for row in ANNAS}


def test_an_invited_person_is_meant_with_all_invites_and_one_of_them_by_its_id() -> None:
    nobody = SwarmView((), NOW)
    assert find_keys(ANNAS, {}, nobody, "anna") == INVITES
    assert find_keys(ANNAS, {}, nobody, ANNAS[1].id) == {ANNAS[1].id: "anna"}


def test_a_peer_that_is_called_what_no_invited_person_is_called_is_meant_itself() -> None:
    assert find_keys(ANNAS, {}, VIEW, "bob") == {OTHER: "bob"}
    assert find_keys([], {}, VIEW, "anna") == {HERE: "anna"}
    assert find_keys(ANNAS, {}, VIEW, HERE) == {HERE: "anna"}
    assert find_keys(ANNAS, {}, VIEW, GONE) == {GONE: ""}


def test_a_peer_that_uses_the_persons_invite_may_be_called_so() -> None:
    users = {ANNAS[0].id: [{"id": HERE, "name": "anna"}]}
    assert find_keys(ANNAS, users, VIEW, "anna") == INVITES


@pytest.mark.parametrize("users", [{}, {OTHER: [{"id": HERE, "name": "anna"}]}])
def test_a_peer_that_only_calls_itself_what_an_invited_person_is_called_gets_nobody_banned(users: Users) -> None:
    with pytest.raises(ConfigError, match="whom do you mean by 'anna'") as refused:
        find_keys(ANNAS, users, VIEW, "anna")
    for one in (*INVITES, HERE):
        assert one in refused.value.message
    assert "by its id" in refused.value.hint
