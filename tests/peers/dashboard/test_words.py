"""The swarm in words, and what of others' words is shown."""

import math
from dataclasses import replace

import pytest

from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord, PeerState
from collab.types import Lineage, Role
from peers.dashboard.plain import HIDDEN, MAX_CHARACTERS, _hidden, finite, shown
from peers.dashboard.words import GOOD, TROUBLE, WAITING, Moment, doing, health, span, why
from peers.summary import newest_evaluation
from tests.peers.test_status import record

NOW_S = 1_000.0
HERE = 7, Lineage("l")
WELL = Moment(
    epoch=7, until_epoch=None, trainers=3, contributors=2, since_step_s=4.0, step_s=10.0, lost_reason=""
)


def trainer(**changes: object) -> PeerRecord:
    there = {"epoch": 7, "lineage": Lineage("l"), "said_at": NOW_S - 2.0}
    return replace(record("a"), **(there | changes))  # type: ignore[arg-type]


def test_a_swarm_that_steps_is_healthy_and_says_since_when() -> None:
    found = health(WELL)
    assert found.level == GOOD
    assert found.text == "healthy: step 7 was taken 4 s ago with the samples of 2 peers"


def test_a_step_that_takes_four_times_what_it_should_is_trouble_with_the_reason() -> None:
    assert health(replace(WELL, since_step_s=39.0)).level == GOOD
    found = health(replace(WELL, since_step_s=41.0, lost_reason="the leader vanished"))
    assert found.level == TROUBLE
    assert "41 s ago, expected every 10 s" in found.text
    assert found.hint == "the last round was lost: the leader vanished"
    assert health(replace(WELL, step_s=0.1, since_step_s=29.0)).level == GOOD, "fast steps are not late at once"
    assert health(replace(WELL, step_s=math.inf, since_step_s=31.0)).level == TROUBLE


def test_no_step_is_late_while_those_who_came_back_cannot_have_taken_one() -> None:
    night = replace(WELL, since_step_s=33_480.0, trainers=1, step_s=40.0)
    found = health(replace(night, here_s=20.0))
    assert (found.level, found.text) == (
        WAITING, "waiting for the next step of 1 trainer: step 7 was taken 9.3 h ago"
    )  # fmt: skip
    found = health(replace(night, here_s=161.0))
    assert found.text == "standing still: step 7 was taken 9.3 h ago, expected every 40 s"
    assert health(replace(night, here_s=161.0, since_step_s=4.0)).level == GOOD
    found = health(replace(night, here_s=299.0, step_s=math.inf, unit_s=300.0))
    assert (found.level, found.text) == (WAITING, "waiting for the next push of 1 trainer: push 7 came 9.3 h ago")
    assert health(replace(night, here_s=301.0, step_s=math.inf, unit_s=300.0)).level == TROUBLE


def test_while_nobody_has_seen_what_a_round_takes_there_is_time_for_one_on_slow_links() -> None:
    found = replace(WELL, step_s=7.0, has_round=False)
    assert health(replace(found, since_step_s=299.0)).level == GOOD
    assert health(replace(found, since_step_s=301.0)).level == TROUBLE
    assert health(replace(found, step_s=100.0, since_step_s=399.0)).level == GOOD


def test_a_swarm_without_trainers_waits_and_one_at_its_end_is_finished() -> None:
    assert health(replace(WELL, trainers=0)).level == WAITING
    assert health(replace(WELL, since_step_s=math.inf)).text == "waiting for the first step of 3 trainers"
    assert health(replace(WELL, trainers=0, until_epoch=7)).text == "finished: all 7 steps are taken"


def test_pushes_are_late_when_a_unit_of_work_has_run_out() -> None:
    pushes = replace(WELL, step_s=math.inf, contributors=0, unit_s=300.0)
    found = health(replace(pushes, since_step_s=290.0))
    assert (found.level, found.text) == (GOOD, "healthy: push 7 came 5 min ago")
    found = health(replace(pushes, since_step_s=301.0))
    assert (found.level, found.text) == (TROUBLE, "standing still: push 7 came 5 min ago")
    assert found.hint == "a unit of work may take 5 min, and none has come back since"
    assert health(replace(pushes, unit_s=1.0, since_step_s=29.0)).level == GOOD


def test_a_swarm_whose_state_nobody_keeps_is_not_well() -> None:
    found = health(replace(WELL, concern="the disk takes no checkpoints", concern_hint="free some space"))
    assert (found.level, found.text) == (TROUBLE, f"{health(WELL).text}; but the disk takes no checkpoints")
    assert found.hint == "free some space"
    waiting = replace(WELL, trainers=0, concern="the disk takes no checkpoints")
    assert health(waiting).level == TROUBLE
    stuck = replace(WELL, since_step_s=99.0, concern="the disk takes no checkpoints")
    assert health(stuck) == health(replace(stuck, concern="")), "the greater trouble first"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "trains"),
        ({"epoch": 8}, "trains"),
        ({"epoch": 5}, "2 steps behind"),
        ({"epoch": 6, "lineage": Lineage("before")}, "trains"),
        ({"lineage": Lineage("other")}, "has another history than most"),
        ({"said_at": NOW_S - 9.0}, "not heard for 9 s"),
        ({"said_at": NOW_S - 9.0, "life_s": 60.0}, "trains"),
        ({"state": PeerState.SYNCING}, "fetches the model"),
        ({"state": PeerState.LEAVING}, "is leaving"),
        ({"role": Role.AUXILIARY, "state": PeerState.SERVING}, "averages for others"),
        ({"role": Role.BACKBONE, "state": PeerState.SERVING}, "keeps the run, averages"),
    ],
)
def test_what_a_peer_does_is_said_in_words(changes: dict[str, object], words: str) -> None:
    assert doing(trainer(**changes), HERE, NOW_S) == words


def test_where_trainers_go_on_alone_nobody_is_behind() -> None:
    assert doing(trainer(epoch=1), None, NOW_S) == "trains"


def test_reasons_and_spans_are_for_people() -> None:
    assert why("late") == "came too late"
    assert why("some_new_reason") == "some new reason"
    assert [span(s) for s in (-1, 0.25, 5, 119, 600, 7200, 260_000)] == [
        "0.0 s", "0.2 s", "5 s", "119 s", "10 min", "2.0 h", "3.0 days",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "10.1.2.3", "at 192.168.0.7:4000 now", "/ip4/203.0.113.7/tcp/4000/p2p/12D3", "/ip6/fe80::1/udp/1",
        "/dns4/home.example/tcp/1", "fe80::1", "2001:db8:0:0:0:0:0:1", "::1", "[2001:db8::7]:4000",
        "::ffff:203.0.113.7", "[::FFFF:203.0.113.7]:4000", "64:ff9b::203.0.113.7", "203.0.113.7.nip.io",
        "app1.203.0.113.7.nip.io", "203.0.113.7.2nd.example", "ip-203-0-113-7.eu-west-1.compute.internal",
        "ip203-0-113-7", "pool-1-203-0-113-7.example", "c-73-1-2-3.hsd1.ca.comcast.net", "at 203.0.113.7.",
        "static.7.113.0.203.clients.your-server.de", "x203.0.113.7y",
    ],
)  # fmt: skip
def test_an_address_is_never_shown(text: str) -> None:
    hidden = shown(text)
    assert HIDDEN in hidden
    for piece in ("10.1", "192.168", "203", "113", "73", "2-3", "fe80", "home.example", "2001", "db8", "ffff", "ff9b"):
        assert piece not in hidden.lower()


@pytest.mark.parametrize(
    "text",
    [
        "at 12:34:56", "version 1.2.3", "0.1.0", "module::Class", "step 7: 1.5", "1.2.3.4.5", "2026-11-27",
        "2026-11-27 10:30:05", "2026.11.27", "torch 2.13.0+cpu", "2.13.0-1", "1.2.3-4", "300.1.2.3", "120.0.6099.109",
        "epoch-00000026", "10-11-12", "550e8400-e29b-41d4-a716-446655440000",
    ],
)  # fmt: skip
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert shown(text) == text


def test_what_others_say_has_no_orders_for_a_browser_and_is_short() -> None:
    assert shown("a\u202eb\x1b[2J\nc\0") == "a b [2J c "
    assert len(shown("x" * 10_000)) == MAX_CHARACTERS
    assert shown("saved in /home/anna/run/epoch-1", "/home/anna/run") == "saved in DATA_DIR/epoch-1"
    assert shown("<b>&amp;") == "<b>&amp;", "markup is text for who shows it as text"


def test_a_figure_that_is_none_is_null() -> None:
    assert [finite(f) for f in (math.nan, math.inf, -math.inf, None, 1.23456789)] == [None, None, None, None, 1.23457]


def test_an_evaluation_of_an_epoch_that_nobody_can_have_reached_is_not_believed() -> None:
    honest, liar = trainer(eval_epoch=5, eval_loss=2.0), trainer(eval_epoch=10**9, eval_loss=0.0)
    view = SwarmView((honest, liar), NOW_S)
    assert newest_evaluation(view, "")[:2] == (10**9, 0.0)
    assert newest_evaluation(view, "", 8)[:2] == (5, 2.0)
    assert newest_evaluation(SwarmView((liar,), NOW_S), "", 8)[0] == -1


def test_an_evaluation_of_before_a_rollback_is_not_the_newest() -> None:
    undone = trainer(era="", eval_epoch=40, eval_loss=0.5, eval_accuracy=0.9)
    now = trainer(era="back", eval_epoch=20, eval_loss=2.0, eval_accuracy=0.4)
    view = SwarmView((undone, now), NOW_S)
    assert newest_evaluation(view, "back") == (20, 2.0, 0.4)
    assert newest_evaluation(SwarmView((undone,), NOW_S), "back")[0] == -1


def test_neither_the_run_s_directory_nor_the_user_s_own_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    _hidden.cache_clear()
    home = "/var/lib/collab/my-run-of-words/backbone"
    assert shown(f"{home}/x, {home.removesuffix('backbone')}orders", home) == "DATA_DIR/x, RUN_DIR/orders"
    assert shown("/home/anna/.cache/huggingface: no space left", home) == "~/.cache/huggingface: no space left"
    assert shown("/tmp/file and /x", "/data") == "/tmp/file and /x", "the root is no run's directory"
