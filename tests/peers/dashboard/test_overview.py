"""What the dashboard says of a run."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from collab.averaging.complaints import Complaint
from collab.config import VcAsgd
from collab.metrics.backbone_events import RolledBack, RoundShared
from collab.metrics.names import BY_EPOCH, COUNTERS
from collab.metrics.records import (
    CheckpointOnHub,
    CheckpointSaved,
    EvaluationDone,
    Notice,
    PeerRefused,
    RoundEnded,
)
from collab.metrics.store import MetricsStore
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import Lineage, PeerId, Role
from peers.credible import Credible
from peers.credit_file import MOST_RANKED
from peers.credits import CreditBook
from peers.dashboard.overview import MOST_NAMES, Overview
from peers.dashboard.plain import short_id
from peers.dashboard.recent import Recent
from peers.summary import ABSENT, DEFERRED
from scripts.dashboard_swarm import InventedSwarm
from tests.averaging.records import make_record
from tests.metrics.test_names import REPORT, ROUND

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "dashboard.md"


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[InventedSwarm]:
    made = InventedSwarm(tmp_path, 4)
    yield made
    made.close()


def state(swarm: InventedSwarm) -> dict:  # type: ignore[type-arg]
    """As a browser gets it."""
    return dict(json.loads(json.dumps(Overview(swarm.sources).state(), allow_nan=False)))


def test_a_run_that_has_not_begun_is_told_without_any_figure(tmp_path: Path) -> None:
    empty = InventedSwarm(tmp_path, 0)
    told = state(empty)
    empty.close()
    assert told["health"]["level"] == "waiting"
    assert told["now"]["loss"] is None
    assert told["now"]["next_step_s"] is None
    assert [peer["role"] for peer in told["peers"]] == ["backbone"]
    assert told["rounds"] == told["checkpoints"] == told["notices"] == told["contributors"]["rows"] == []


def test_before_the_first_step_it_is_waited_for_however_long_that_takes(swarm: InventedSwarm) -> None:
    swarm.sink.observe(replace(REPORT, epoch=0, at_s=swarm.clock.now() - 600.0))
    told = state(swarm)["health"]
    assert (told["level"], told["text"]) == ("waiting", "waiting for the first step of 4 trainers")
    swarm.sink.observe(replace(REPORT, epoch=1, at_s=swarm.clock.now() - 600.0))
    assert state(swarm)["health"]["level"] == "trouble"


def test_figures_peers_rounds_and_contributors_are_those_of_the_swarm(swarm: InventedSwarm) -> None:
    for _ in range(30):
        swarm.step()
    told = state(swarm)
    assert told["health"]["level"] == "good"
    assert told["health"]["text"].endswith("with the samples of 4 peers")
    now = told["now"]
    assert (now["epoch"], now["trainers"], now["peers"], now["eval_epoch"]) == (30, 4, 5, 30)
    assert now["loss"] == pytest.approx(swarm.loss, rel=1e-5)
    assert now["samples_per_s"] == 57.0
    assert 0 < now["next_step_s"] <= 512 / 57
    trainers = [peer for peer in told["peers"] if peer["role"] == "trainer"][::-1]
    assert [peer["name"] for peer in trainers] == ["trainer-1", "trainer-2", "trainer-3", "trainer-4"]
    assert {peer["doing"] for peer in trainers} == {"trains"}
    assert {peer["device"] for peer in trainers} == {"CPU"}
    assert trainers[0]["brought_at_s"] == pytest.approx(told["at_s"], abs=5.0)
    newest = told["rounds"][0]
    assert newest["epoch"] == 29
    assert newest["is_committed"]
    assert newest["links_allow_s"] == 0.35
    assert (trainers[0]["up_bytes_per_s"], trainers[0]["down_bytes_per_s"]) == (2.5e6, 12.5e6)
    assert newest["fullest_link"]["way"] == "up", "2.5 MB/s carry less than 12.5"
    assert newest["fullest_link"]["used"] == trainers[0]["up_used"]
    assert trainers[0]["up_used"] == pytest.approx(0.5 / (2.5 * newest["seconds"]), rel=0.01)
    assert trainers[0]["down_used"] == pytest.approx(0.625 / (12.5 * newest["seconds"]), rel=0.01)
    assert [one["name"] for one in newest["brought"]] == ["trainer-4", "trainer-3", "trainer-2", "trainer-1"]
    assert (newest["contributors"], newest["reducers"]) == (4, 5)
    assert sum(one["share"] for one in newest["reduced"]) == pytest.approx(1.0, abs=0.01)
    rows = told["contributors"]["rows"]
    assert [row["name"] for row in rows] == ["trainer-4", "trainer-3", "trainer-2", "trainer-1"]
    assert sum(row["share"] for row in rows) == pytest.approx(1.0, abs=0.001)
    assert told["checkpoints"][0]["epoch"] == 30
    assert told["checkpoints"][0]["place"] == "checkpoints/epoch-00000030", "and not where on this machine"


def joined_by(swarm: InventedSwarm, *strangers: PeerRecord) -> None:
    """They are here from now on."""
    seen = swarm.sources.view
    swarm.sources = replace(swarm.sources, view=lambda: replace(seen(), records=(*seen().records, *strangers)))


def test_a_stranger_s_claims_move_neither_the_first_line_nor_the_step_nor_when_the_run_ends(tmp_path: Path) -> None:
    """It says to be a trainer, or a backbone, beyond the run's end."""
    swarm = InventedSwarm(tmp_path, 2)
    for _ in range(30):
        swarm.step()
    swarm.rounds = [make_record(contributors=tuple((peer, 8.0) for peer in swarm.names), epoch=29)]
    told = state(swarm)
    honest = next(record for record in swarm.view().records if record.role is Role.TRAINER)
    ahead = replace(honest, peer=PeerId("stranger-1"), epoch=2**53, lineage=Lineage("x"), samples_per_s=1e9)
    keeper = replace(ahead, peer=PeerId("stranger-2"), role=Role.BACKBONE, checkpoint_epoch=2**53)
    joined_by(swarm, ahead, keeper)
    deceived = state(swarm)
    swarm.close()
    assert deceived["health"]["text"].startswith("healthy: step 30 was taken")
    for figure in ("epoch", "trainers", "samples_per_s", "step_s", "remaining_s", "learning_rate"):
        assert deceived["now"][figure] == pytest.approx(told["now"][figure], rel=0.01)
    assert [peer["id"] for peer in deceived["peers"] if peer["epoch"] == 2**53] == ["stranger-2", "stranger-1"]


def test_where_parameters_are_stored_the_store_says_which_step_the_run_is_at(swarm: InventedSwarm) -> None:
    run = swarm.sources.run.model_copy(update={"strategy": VcAsgd(name="vc_asgd")})
    swarm.sources = replace(swarm.sources, run=run, credible=Credible(run, str, list, trusts=bool, version=lambda: 12))
    honest = next(record for record in swarm.view().records if record.role is Role.TRAINER)
    swarm.sources = replace(
        swarm.sources, view=lambda: SwarmView((replace(honest, epoch=11), replace(honest, epoch=2**53)), 0.0)
    )
    assert state(swarm)["now"]["epoch"] == 12


def took(swarm: InventedSwarm, *steps_s: float, round_s: float, ago_s: float) -> None:
    """Steps that took so long, the last of them so long ago."""
    at_s = swarm.clock.now() - ago_s - sum(steps_s[1:])
    for epoch, wait_s in enumerate(steps_s):
        at_s += wait_s if epoch else 0.0
        swarm.sink.observe(replace(ROUND, epoch=epoch, round_id=f"{epoch}", at_s=at_s, seconds=round_s))
        swarm.sink.observe(replace(REPORT, epoch=epoch + 1, at_s=at_s))
    swarm.epoch, swarm.begun_s = len(steps_s), at_s


def test_rounds_that_take_much_longer_than_the_batch_are_no_standstill(swarm: InventedSwarm) -> None:
    """512 samples at 57/s are there after 9 s; the round that follows takes 90."""
    took(swarm, 97.0, 97.0, 97.0, round_s=90.0, ago_s=80.0)
    told = state(swarm)
    assert told["health"]["level"] == "good"
    assert told["now"]["next_step_s"] == pytest.approx(17.0, abs=1.0)
    assert told["now"]["step_s"] == pytest.approx(97.0, abs=0.1)
    took(swarm, 97.0, 97.0, 97.0, round_s=90.0, ago_s=110.0)
    told = state(swarm)
    assert told["health"]["level"] == "good"
    assert told["now"]["next_step_s"] == 0.0, "at any moment"
    took(swarm, 97.0, 97.0, 97.0, round_s=90.0, ago_s=400.0)
    told = state(swarm)["health"]
    assert told["level"] == "trouble"
    assert told["text"].endswith("expected every 97 s")


def test_the_first_round_alone_tells_what_one_takes(swarm: InventedSwarm) -> None:
    took(swarm, 97.0, round_s=90.0, ago_s=80.0)
    told = state(swarm)
    assert told["health"]["level"] == "good"
    assert told["now"]["next_step_s"] == pytest.approx(10.0, abs=1.0)


def test_when_the_run_ends_is_told_right_also_after_a_night_without_trainers(swarm: InventedSwarm) -> None:
    took(swarm, 20.0, 20.0, 20.0, 40_000.0, 20.0, 20.0, round_s=1.0, ago_s=1.0)
    now = state(swarm)["now"]
    assert now["step_s"] == pytest.approx(20.0, abs=0.1)
    assert now["remaining_s"] == pytest.approx(20.0 * (100_000 - 6), rel=0.01)


def test_whoever_comes_back_in_the_morning_has_time_for_a_step(swarm: InventedSwarm) -> None:
    took(swarm, 40.0, 40.0, round_s=1.0, ago_s=33_480.0)
    assert state(swarm)["health"]["level"] == "trouble"
    night = swarm.names
    swarm.names = {}
    assert state(swarm)["health"]["text"] == "waiting: no trainer is here"
    swarm.names = night
    told = state(swarm)["health"]
    assert (told["level"], told["text"]) == (
        "waiting", "waiting for the next step of 4 trainers: step 2 was taken 9.3 h ago"
    )  # fmt: skip
    swarm.step()
    assert state(swarm)["health"]["level"] == "good"


def test_who_was_left_out_of_a_round_is_said_with_the_reason(swarm: InventedSwarm) -> None:
    slow, gone, late, stranger = (PeerId(name) for name in (*sorted(swarm.names)[:3], "a-stranger"))
    ended = RoundEnded(
        at_s=5.0, epoch=3, round_id="r", committed=True, contributors=1, samples=9.0, seconds=1.0, reason=""
    )
    refused = PeerRefused(at_s=5.0, epoch=3, peer=late, reason="late", text="it came 3 s too late")
    shared = RoundShared(
        at_s=5.0,
        epoch=3,
        round_id="r",
        brought=((PeerId("other"), 9.0),),
        reduced=((PeerId("other"), 1.0),),
        left_out=((slow, DEFERRED), (gone, ABSENT)),
    )
    lost = replace(ended, epoch=4, round_id="s", committed=False, reason="leader at 10.0.0.7 vanished")
    for event in (refused, replace(refused, epoch=2, peer=stranger), shared, ended, lost):
        swarm.sink.observe(event)
    aborted, committed = state(swarm)["rounds"]
    assert {one["name"]: one["why"] for one in committed["left_out"]} == {
        "trainer-1": "its upload would have held up the others",
        "trainer-2": "was not there in time",
        "trainer-3": "came too late",
    }
    assert committed["brought"] == [{"name": "…other", "samples": 9.0}], "of whom no name is known"
    assert not aborted["is_committed"]
    assert aborted["reason"] == "leader at (an address) vanished"


def test_rounds_of_before_and_after_a_rollback_have_their_own_refusals_also_after_a_restart(tmp_path: Path) -> None:
    swarm = InventedSwarm(tmp_path, 4)
    first, second = (PeerId(name) for name in sorted(swarm.names)[:2])
    ended = RoundEnded(
        at_s=5.0, epoch=3, round_id="r", committed=True, contributors=1, samples=9.0, seconds=1.0, reason=""
    )
    refused = PeerRefused(at_s=5.0, epoch=3, peer=first, reason="late", text="")
    swarm.sink.observe(refused)
    swarm.sink.observe(ended)
    swarm.sink.observe(RolledBack(at_s=10.0, epoch=2, era="back"))
    swarm.sink.observe(replace(ended, at_s=11.0, round_id="s"))
    swarm.sink.observe(replace(refused, at_s=12.0, epoch=4, peer=second))
    swarm.sink.observe(replace(ended, at_s=13.0, epoch=4, round_id="t"))
    swarm.sink.observe(replace(refused, at_s=14.0, peer=second))

    def left_out(rounds: list[dict]) -> list[list[str]]:  # type: ignore[type-arg]
        return [[one["name"] for one in told["left_out"]] for told in rounds]

    expected = [["trainer-2"], ["trainer-2"], ["trainer-1"]]
    assert left_out(state(swarm)["rounds"]) == expected
    swarm.recorder.write()
    swarm.close()
    later = InventedSwarm(tmp_path, 4)
    assert left_out(state(later)["rounds"]) == expected
    later.close()


def test_that_nothing_is_saved_is_in_the_first_line_and_names_no_place_of_this_machine(swarm: InventedSwarm) -> None:
    swarm.step()
    assert state(swarm)["health"]["level"] == "good"
    swarm.concern = f"{swarm.sources.home}/checkpoints takes nothing", f"make room in {swarm.sources.home}"
    told = state(swarm)["health"]
    assert told["hint"] == "make room in DATA_DIR"
    assert told["level"] == "trouble"
    assert told["text"].endswith("; but DATA_DIR/checkpoints takes nothing")


def test_reasons_that_a_member_gave_are_one_word_and_show_no_address(swarm: InventedSwarm) -> None:
    hostile = "203.0.113.7 \x1b[2J <b>"
    complaint = Complaint.from_message(Complaint(PeerId("x"), hostile, "text").to_message())
    assert complaint.reason == "other"
    swarm.step()
    last = swarm.recent.newest(RoundEnded)[0]["epoch"]
    gone = PeerId("12D3KooWgone")
    swarm.sink.observe(PeerRefused(at_s=9.0, epoch=last, peer=gone, reason=hostile, text=""))
    (told,) = [one for one in state(swarm)["rounds"][0]["left_out"] if one["name"] == short_id(gone)]
    assert "203.0.113.7" not in told["why"]
    assert "\x1b" not in told["why"]


def test_a_peer_that_is_gone_is_in_the_list_no_more_and_its_share_stays(swarm: InventedSwarm) -> None:
    swarm.step()
    swarm.step()
    gone = sorted(swarm.names)[3]
    del swarm.names[gone]
    told = state(swarm)
    assert "trainer-4" not in {peer["name"] for peer in told["peers"]}
    row = next(row for row in told["contributors"]["rows"] if row["id"] == gone)
    assert not row["is_here"]
    assert row["samples"] == 660


def test_what_was_seen_before_a_restart_is_shown_after_it(tmp_path: Path) -> None:
    first = InventedSwarm(tmp_path, 3)
    for _ in range(25):
        first.step()
    first.recorder.write()
    told = state(first)
    first.sources.credits.save()
    first.close()
    second = InventedSwarm(tmp_path, 0)
    again = state(second)
    second.close()
    assert [one["epoch"] for one in again["rounds"]] == [one["epoch"] for one in told["rounds"]]
    assert again["now"]["loss"] == told["now"]["loss"]
    assert again["now"]["epoch"] == 25
    assert again["checkpoints"] == told["checkpoints"]
    assert again["contributors"]["total"] == told["contributors"]["total"]


def test_checkpoints_on_the_hub_have_a_link_and_notices_no_secrets_of_this_machine(swarm: InventedSwarm) -> None:
    home = swarm.sources.home
    swarm.sink.observe(
        CheckpointOnHub(at_s=9.0, epoch=5, place="org/name", commit="c0ffee", num_bytes=7, seconds=1.0)
    )
    swarm.sink.observe(CheckpointSaved(at_s=8.0, epoch=5, path=f"{home}/x/epoch-5", num_bytes=7, seconds=1.0))
    swarm.on_disk = [5]
    swarm.sink.observe(Notice(at_s=9.0, text=f"{home}/x is full, ask 10.9.8.7", hint="free some", is_problem=True))
    told = state(swarm)
    assert [one["where"] for one in told["checkpoints"]] == ["hub", "disk"]
    assert told["checkpoints"][0]["url"] == "https://hub.example/org/name/tree/c0ffee"
    assert told["notices"] == [
        {"at_s": 9.0, "text": "DATA_DIR/x is full, ask (an address)", "hint": "free some", "is_problem": True}
    ]
    assert home not in json.dumps(told)


def test_the_evaluation_of_the_last_step_is_shown_though_no_step_follows(swarm: InventedSwarm) -> None:
    for _ in range(15):
        swarm.step()
    assert state(swarm)["now"]["eval_epoch"] == 10
    swarm.sink.observe(EvaluationDone(at_s=9.0, epoch=15, loss=1.25, seconds=math.nan, accuracy=0.5))
    now = state(swarm)["now"]
    assert (now["eval_epoch"], now["eval_loss"], now["eval_accuracy"]) == (15, 1.25, 0.5)
    swarm.sink.observe(RolledBack(at_s=10.0, epoch=12, era="back"))
    now = state(swarm)["now"]
    assert (now["eval_epoch"], now["eval_loss"]) == (-1, None)


def test_checkpoints_that_are_not_on_the_disk_any_more_are_not_shown(swarm: InventedSwarm) -> None:
    for _ in range(60):
        swarm.step()
    assert [one["epoch"] for one in state(swarm)["checkpoints"]] == [60, 50, 40], "the others were deleted"
    again = CheckpointSaved(at_s=swarm.clock.now(), epoch=50, path="x/epoch-50", num_bytes=9, seconds=1.0)
    swarm.sink.observe(again)
    swarm.on_disk = [40, 50]
    told = state(swarm)["checkpoints"]
    assert [(one["epoch"], one["num_bytes"]) for one in told] == [(50, 9), (40, 21_300_000)], "60 was set aside"


def test_metrics_have_the_names_and_values_that_the_store_has_also_after_a_restart(tmp_path: Path) -> None:
    swarm = InventedSwarm(tmp_path, 4)
    for _ in range(5):
        swarm.step()
    swarm.sink.observe(CheckpointOnHub(at_s=9.0, epoch=4, place="org/name", commit="c", num_bytes=7, seconds=1.0))
    told = state(swarm)
    swarm.recorder.write()
    assert told["figures"] == pytest.approx(swarm.store.newest_figures(), rel=1e-5)
    assert set(told["figures"]) <= {metric.name for metric in BY_EPOCH}
    assert told["figures"]["hub_epoch"] == 4.0
    assert told["counters"] == dict.fromkeys([metric.name for metric in COUNTERS], 0) | swarm.store.counters()
    assert told["counters"]["hub_commits_total"] == 1
    swarm.close()
    later = InventedSwarm(tmp_path, 4)
    assert {name: state(later)[name] for name in ("figures", "counters")} == {
        name: told[name] for name in ("figures", "counters")
    }
    later.sink.observe(RolledBack(at_s=10.0, epoch=2, era="back"))
    assert not {"hub_epoch", "loss"} & state(later)["figures"].keys(), "they were of after the epoch gone back to"
    later.step()
    assert state(later)["figures"]["loss"] == state(later)["now"]["loss"]
    assert (told["run"]["rolled_back_at_s"], state(later)["run"]["rolled_back_at_s"]) == (None, 10.0)
    later.close()
    last = InventedSwarm(tmp_path, 4)
    assert state(last)["run"]["rolled_back_at_s"] == 10.0
    last.close()


def test_of_very_many_contributors_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    crowd = InventedSwarm(tmp_path, MOST_RANKED + 30)
    crowd.step()
    crowd.step()
    everything = state(crowd)
    told = everything["contributors"]
    crowd.close()
    assert len(everything["rounds"][0]["brought"]) == MOST_NAMES
    assert everything["rounds"][0]["contributors"] == MOST_RANKED + 30
    assert len(told["rows"]) == MOST_RANKED
    assert told["others"] == 30
    assert told["samples"] + sum(row["samples"] for row in told["rows"]) == told["total"]


@pytest.mark.parametrize("only_seen", [True, False])
def test_a_claim_alone_makes_nobody_a_contributor_where_training_goes_in_rounds(
    swarm: InventedSwarm, tmp_path: Path, only_seen: bool
) -> None:
    with closing(CreditBook(tmp_path / "another.sqlite", only_seen=only_seen)) as book:
        swarm.sources = replace(swarm.sources, credits=book)
        swarm.step()
        told = state(swarm)["contributors"]
        honest = next(record for record in swarm.view().records if record.role is Role.TRAINER)
        boast = [replace(honest, peer=PeerId("stranger"), total_samples=10**15)]
        book.meet(boast)
        book.note(boast)
        if only_seen:
            assert state(swarm)["contributors"] == told
        else:
            assert state(swarm)["contributors"]["rows"][0]["id"] == "stranger", "there are no rounds to be seen in"


def test_memory_of_rounds_is_bounded_and_begins_with_the_store() -> None:
    store = MetricsStore.in_memory()
    ended = RoundEnded(
        at_s=0.0, epoch=0, round_id="r", committed=True, contributors=1, samples=1.0, seconds=math.nan, reason=""
    )
    store.write([replace(ended, epoch=epoch, round_id=f"{epoch}") for epoch in range(50)])
    recent = Recent(store, here=list)
    store.close()
    assert [told["epoch"] for told in recent.newest(RoundEnded)] == list(range(49, 29, -1))
    recent.observe(replace(ended, epoch=99))
    assert recent.newest(RoundEnded)[0]["epoch"] == 99
    assert len(recent.newest(RoundEnded)) == 20


def test_who_is_gone_and_was_in_no_round_that_is_shown_is_forgotten_and_who_rests_is_not(swarm: InventedSwarm) -> None:
    gone, rests = sorted(swarm.names)[:2]

    def shared(epoch: int, *peers: PeerId) -> RoundShared:
        brought = tuple((peer, 8.0) for peer in peers)
        return RoundShared(at_s=epoch, epoch=epoch, round_id=str(epoch), brought=brought, reduced=(), left_out=())

    swarm.sink.observe(shared(0, gone, rests))
    del swarm.names[gone]
    known = swarm.recent.brought_at_s
    assert known == {gone: 0.0, rests: 0.0}
    for epoch in range(1, 1000):
        swarm.sink.observe(shared(epoch, PeerId(f"stranger-{epoch}")))
        known = swarm.recent.brought_at_s
        assert len(known) <= 21
        assert (gone in known) == (epoch < 20)
        assert known[rests] == 0.0


def fields(value: object) -> set[str]:
    """All names in it."""
    if isinstance(value, list):
        return set().union(*(fields(item) for item in value))
    if isinstance(value, dict):
        return set(value).union(*(fields(item) for item in value.values()))
    return set()


def test_every_field_is_in_the_documentation(swarm: InventedSwarm) -> None:
    for _ in range(10):
        swarm.step()
    slow = PeerId(min(swarm.names))
    swarm.sink.observe(
        RoundShared(at_s=0.0, epoch=9, round_id="round-9", brought=(), reduced=(), left_out=((slow, ABSENT),))
    )
    swarm.sink.observe(Notice(at_s=9.0, text="hello"))
    named = set(re.findall(r"`(\w+)(?:\[\])?`", DOCUMENTATION.read_text(encoding="utf-8")))
    assert fields(state(swarm)) - named == set()
