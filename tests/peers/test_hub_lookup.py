"""A run by the name of its repository: found, taken for what it is, and exported."""

import json
import math
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
import transformers
import yaml

from collab.checkpoints.carried_on import carry_on
from collab.checkpoints.file_names import why_unfit
from collab.checkpoints.hub_publisher import HubPublisher
from collab.checkpoints.hub_repository import LOOK_S, HubPlace, HubRepository
from collab.checkpoints.local import list_checkpoints, save_checkpoint, verified_state
from collab.checkpoints.local_publisher import LocalPublisher
from collab.config import Run, load_run, parse_run
from collab.errors import CheckpointFailed, ConfigError, CorruptState, HubBusy, HubDenied, InviteError, StateError
from collab.metrics.records import SwarmReport
from collab.metrics.store import MetricsStore
from collab.swarm.access import Grant, Papers, pack_grant
from collab.swarm.bundle import Bundle
from collab.swarm.identity import Identity, load_or_create_identity
from collab.swarm.invite import Invite, write_invite
from collab.swarm.lease import Tenure
from collab.swarm.order_exchange import write_orders
from collab.swarm.orders import OrderBook
from collab.swarm.snapshots import pack
from collab.swarm.statements import Amend, Ban, Rollback, Statement
from collab.tasks.registry import build_task
from collab.training.genesis import make_genesis
from collab.types import Lineage, PeerId, Role
from peers.assets import load_assets
from peers.carrying_on import MOST_RUN_FILE_BYTES, bring_run_file, take_up, told_before
from peers.credits import Credit
from peers.hosting import HostOptions, _bring_own
from peers.hub_history import History, curves_of, points_of
from peers.hub_history_file import HISTORY, read_history
from peers.hub_lookup import checkpoint_in, export_to, place_of, word_of
from peers.hub_pace import HUB_EVERY_MIN
from peers.hub_pages import MOST_WORD_BYTES, RUN_ON_HUB, HubPages, Seen, count_parameters
from peers.hub_service import bring_if_lost, place_for, place_named, service_at
from peers.hub_taken_over import kept_history
from peers.places import DataDir
from tests.checkpoints.test_hub_publisher import NAME
from tests.checkpoints.test_local import snapshot
from tests.checkpoints.test_local_publisher import FILES, order
from tests.hub.client import hub, use_hub
from tests.hub.standin import HubStandIn, Repository

__all__ = ["hub"]
A = PeerId("a")
OWNER = Identity.from_seed(b"o" * 32)
RUN = parse_run("{run_id: my-run, task: {name: image_classification}, hub_repo: org/model}", origin="the test")
BUNDLE = Bundle(RUN, {}, OWNER.peer_id)
INVITE = Invite(
    run_id="my-run",
    fingerprint=BUNDLE.fingerprint,
    owner=OWNER.peer_id,
    addresses=(f"/ip4/10.0.0.1/tcp/4001/p2p/{OWNER.peer_id}",),
)
WORD = write_invite(INVITE, OWNER)


@pytest.fixture
def at_hub(hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubStandIn:
    """Also for whoever does not name an endpoint."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_TEMPLATE"):
        monkeypatch.setattr(huggingface_hub.constants, name, getattr(huggingface_hub.constants, name))
    use_hub(hub.url)
    return hub


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was waited for the Hub; no time passes."""
    found: list[float] = []
    monkeypatch.setattr("peers.hub_patience.sleep", found.append)
    return found


def given_by(name: str, samples: int, said_at_s: float = 0.0) -> Credit:
    """Somebody who was in a round."""
    return Credit(name, 0, samples, is_seen=True, said_at_s=said_at_s)


ANNA = {"a": given_by("Anna", 640)}
Peers = dict[str, Credit]


def ordered(*what: Statement) -> OrderBook:
    book = OrderBook(BUNDLE.fingerprint, OWNER.peer_id)
    for one in what:
        book = book.extended([book.signed(one, OWNER, 0.0)])
    return book


OTHERS_ORDERS = OrderBook("another fingerprint", OWNER.peer_id)


def publish(
    server: HubStandIn,
    root: Path,
    epoch: int,
    invite: str | None,
    given: Peers = ANNA,
    said: Sequence[Statement] = (),
    bundle: Bundle = BUNDLE,
) -> Path:
    """As a backbone does, with its pages."""
    disk = LocalPublisher(root / "checkpoints", bundle.fingerprint, lambda: FILES, keep=9)
    root.mkdir(parents=True, exist_ok=True)
    store = MetricsStore.open(root / "metrics.sqlite")
    seen = Seen(
        curves=lambda: curves_of(store),
        given=lambda: [(PeerId(peer), credit) for peer, credit in given.items()],
        before=lambda: kept_history(DataDir(root).hub_history),
        orders=lambda: ordered(*said),
    )
    pages = HubPages(NAME, bundle, seen, invite)
    repository = HubRepository(HubPlace(NAME), endpoint=server.url)
    publisher = HubPublisher(repository, root / "outbox", pages.beside, pages.misleads)
    wanted = order(epoch, Tenure(1, A))
    path = disk.publish(snapshot(epoch), wanted).path
    with closing(store):
        publisher.publish(path, wanted)
    return path


def head(server: HubStandIn) -> dict[str, bytes]:
    return server.repositories[NAME].head.files


def report(root: Path, epoch: int, loss: float, eval_loss: float = math.nan) -> None:
    event = SwarmReport(
        at_s=0.0, epoch=epoch, lineage=Lineage("l"), loss=loss, eval_loss=eval_loss, eval_epoch=epoch,
        eval_accuracy=math.nan, samples_per_s=1.0, trainers=1, peers=2, learning_rate=0.25,
    )  # fmt: skip
    root.mkdir(parents=True, exist_ok=True)
    with closing(MetricsStore.open(root / "metrics.sqlite")) as store:
        store.write([event])


def test_a_checkpoint_comes_with_its_figures_its_curve_and_the_run(hub: HubStandIn, tmp_path: Path) -> None:
    for epoch, loss in ((5, 3.0), (10, 2.0), (15, 1.0)):
        report(tmp_path, epoch, loss)
    publish(hub, tmp_path, 10, WORD)
    files = head(hub)
    state = json.loads(files["collab_state.json"])
    assert state["hub"] == {"term": 1, "holder": "a", "samples": 640, "loss": 2.0}
    assert (state["epoch"], state["fingerprint"]) == (10, BUNDLE.fingerprint)
    assert b"2.5" not in files["loss.svg"]
    assert {"samples_per_s.svg", "learning_rate.svg"} <= set(files)
    assert "Anna: 640 samples" in files["README.md"].decode()
    run = parse_run(files["run.yaml"].decode(), origin="the Hub")
    assert run == RUN.model_copy(update={"hub_repo": None})
    assert verified_state(tmp_path / "checkpoints" / "epoch-00000010")["epoch"] == 10


def test_the_curves_of_the_card_are_those_of_the_store(tmp_path: Path) -> None:
    with closing(MetricsStore.open(tmp_path / "metrics.sqlite")) as store:
        assert points_of(curves_of(store)) == []
    for epoch, loss, held_out in ((1, 5.0, math.nan), (2, 4.0, 4.5), (3, 3.0, math.nan), (3, 2.5, math.nan)):
        report(tmp_path, epoch, loss, held_out)
    with closing(MetricsStore.open(tmp_path / "metrics.sqlite")) as store:
        points = points_of(curves_of(store))
    assert [(point.epoch, point.loss) for point in points] == [(1, 5.0), (2, 4.0), (3, 2.5)]
    assert [(point.eval_epoch, point.eval_loss) for point in points if point.eval_epoch >= 0] == [(2, 4.5)]
    assert [(point.samples_per_s, point.learning_rate) for point in points] == [(1.0, 0.25)] * 3


# -- what others have seen ---------------------------------------------------------------------------------------------


def card(server: HubStandIn) -> str:
    return head(server)["README.md"].decode()


def told_losses(server: HubStandIn) -> dict[int, float]:
    return dict(read_history(head(server)[HISTORY]).curves["loss"])


def test_a_backbone_that_takes_over_tells_what_the_one_before_has_seen(hub: HubStandIn, tmp_path: Path) -> None:
    for epoch, loss in ((5, 3.0), (10, 2.0)):
        report(tmp_path / "first", epoch, loss)
    publish(hub, tmp_path / "first", 10, WORD, {**ANNA, "b": given_by("", 100)})
    report(tmp_path / "second", 20, 1.0)
    publish(hub, tmp_path / "second", 20, None, {"a": given_by("Anna", 30), "d": given_by("Dora", 20)})
    assert told_losses(hub) == {5: 3.0, 10: 2.0, 20: 1.0}
    text = card(hub)
    assert "- Anna: 640 samples\n- Dora: 20 samples" in text
    assert "| Samples trained so far, as peers tell | 740 |" in text
    assert json.loads(head(hub)["collab_state.json"])["hub"]["samples"] == 740
    assert json.loads(head(hub)["collab_state.json"])["hub"]["loss"] == 1.0


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"format": 1}', bytes(5_000_000)])
def test_a_history_that_is_garbled_is_left_aside_and_a_new_one_begins(
    hub: HubStandIn, tmp_path: Path, content: bytes
) -> None:
    publish(hub, tmp_path / "first", 10, WORD)
    held = hub.repositories[NAME]
    held.commit("forged", held.head.files | {HISTORY: content})
    report(tmp_path / "second", 20, 1.0)
    publish(hub, tmp_path / "second", 20, WORD)
    assert told_losses(hub) == {20: 1.0}
    assert "Anna: 640 samples" in card(hub)


def test_what_the_organiser_has_written_below_the_mark_stays(hub: HubStandIn, tmp_path: Path) -> None:
    publish(hub, tmp_path, 10, WORD)
    held = hub.repositories[NAME]
    page = held.head.files["README.md"].replace(b"---\n", b"---\nlanguage: en\n", 1) + b"\n## Our thanks\n"
    held.commit("edited", held.head.files | {"README.md": page})
    publish(hub, tmp_path, 20, WORD)
    assert card(hub).endswith("\n## Our thanks\n")
    assert yaml.safe_load(card(hub).split("---\n")[1])["language"] == "en"
    assert "after 20 global steps" in card(hub)


def test_a_name_goes_from_the_page_when_its_machine_is_banned(hub: HubStandIn, tmp_path: Path) -> None:
    rude = Identity.from_seed(b"r" * 32).peer_id
    given = {**ANNA, rude: given_by("rude words", 60)}
    publish(hub, tmp_path, 10, WORD, given)
    assert "rude words" in card(hub)
    for epoch, root in ((20, tmp_path), (30, tmp_path / "second")):
        publish(hub, root, epoch, WORD, given, said=[Ban(who=rude, reason="its name")])
        assert f"after {epoch} global steps" in card(hub)
        assert "- Anna: 640 samples\n- 1 more machine" in card(hub)
        assert not any(b"rude words" in content for content in head(hub).values())


@pytest.mark.parametrize("strategy", ["dedloc", "vc_asgd"])
def test_a_claim_counts_on_the_page_once_its_machine_was_in_a_round_if_there_are_rounds(
    hub: HubStandIn, tmp_path: Path, strategy: str
) -> None:
    run = Run.model_validate(RUN.model_dump() | {"strategy": {"name": strategy}})
    given = {**ANNA, "b": Credit("Boaster", 0, 10**15), "c": Credit("", 0, 10**15)}
    publish(hub, tmp_path, 10, WORD, given, bundle=Bundle(run, {}, OWNER.peer_id))
    has_rounds = strategy == "dedloc"
    assert ("Boaster" in card(hub)) is not has_rounds
    assert (b"Boaster" in head(hub)[HISTORY]) is not has_rounds
    assert ("| Samples trained so far, as peers tell | 640 |" in card(hub)) is has_rounds


def test_what_the_organiser_has_amended_is_on_the_page(hub: HubStandIn, tmp_path: Path) -> None:
    said = (
        Amend(from_epoch=3, learning_rate=0.5),
        Amend(from_epoch=8, learning_rate=0.125, target_batch_size=2048),
        Amend(from_epoch=15, learning_rate=9.0),
    )
    publish(hub, tmp_path, 10, WORD, said=said)
    rate, batch = RUN.optimizer.learning_rate, RUN.strategy.target_batch_size
    assert f"learning rate 0.125 since epoch 8 ({rate:g} at the beginning)" in card(hub)
    assert f"| 2,048 since epoch 8 ({batch:,} at the beginning) |" in card(hub)


def test_a_moved_run_is_found_at_its_new_address_before_its_next_checkpoint(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    """All is lost but the owner's key: the state comes from the Hub, and the backbone has another address and key."""
    publish(at_hub, tmp_path / "lost", 10, WORD)
    moved = write_invite(replace(INVITE, addresses=(f"/ip4/10.9.9.9/tcp/4001/p2p/{OWNER.peer_id}",)), OWNER)
    publish(at_hub, tmp_path / "new", 10, moved)
    assert word_of(NAME) == moved
    commits = len(at_hub.repositories[NAME].commits)
    for root in ("new", "lost"):
        publish(at_hub, tmp_path / root, 10, moved if root == "new" else None)
    assert len(at_hub.repositories[NAME].commits) == commits
    publish(at_hub, tmp_path / "new", 10, "")
    assert RUN_ON_HUB not in head(at_hub), "nobody is to find it any more"
    publish(at_hub, tmp_path / "new", 10, "")
    assert len(at_hub.repositories[NAME].commits) == commits + 1


def test_parameters_are_counted_as_the_file_has_them(tmp_path: Path, hub: HubStandIn) -> None:
    path = publish(hub, tmp_path, 10, WORD)
    assert count_parameters(path / "model.safetensors") == 6, "six weights; a counter is none"
    (tmp_path / "x").write_bytes(b"\xff" * 20)
    assert count_parameters(tmp_path / "x") == count_parameters(tmp_path / "nothing") == 0


# -- joining -----------------------------------------------------------------------------------------------------------


def test_the_name_of_a_repository_stands_for_the_invite_in_it(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    at_hub.repositories[NAME].private = False
    assert word_of(NAME) == WORD
    assert "collab-peer join org/model" in head(at_hub)["README.md"].decode()


def test_anything_else_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "model").write_text("an invite in a file")
    for text in (WORD, "nonsense", "org/model", str(tmp_path / "org" / "model")):
        assert word_of(text) == text
    assert place_of("org/other") == HubPlace("org/other")


def test_a_run_that_announces_nothing_is_not_found_and_what_was_announced_once_goes(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    assert RUN_ON_HUB in head(at_hub)
    publish(at_hub, tmp_path, 20, "")
    assert RUN_ON_HUB not in head(at_hub)
    with pytest.raises(InviteError, match="does not say where its run is"):
        word_of(NAME)


def test_a_backbone_without_the_owners_key_leaves_what_the_owner_has_said(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    told = head(at_hub)[RUN_ON_HUB]
    publish(at_hub, tmp_path / "second", 20, None)
    assert head(at_hub)[RUN_ON_HUB] == told
    assert "collab-peer join org/model" in head(at_hub)["README.md"].decode()


STRANGER = Identity.from_seed(b"s" * 32)
OTHER = write_invite(replace(INVITE, owner=STRANGER.peer_id, fingerprint="e" * 64), STRANGER)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not what a backbone writes"),
        (b"[]", "not what a backbone writes"),
        (b'{"format": 2, "invite": "", "fingerprint": ""}', "another version"),
        (json.dumps({"format": 1, "invite": WORD[:-4], "fingerprint": BUNDLE.fingerprint}).encode(), "garbled|cut"),
        (json.dumps({"format": 1, "invite": OTHER, "fingerprint": BUNDLE.fingerprint}).encode(), "something else"),
    ],
)
def test_what_no_backbone_has_written_is_refused(at_hub: HubStandIn, tmp_path: Path, content: bytes, said: str) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    repository = at_hub.repositories[NAME]
    repository.commit("forged", repository.head.files | {RUN_ON_HUB: content})
    with pytest.raises(InviteError, match=said):
        word_of(NAME)


def test_a_file_in_place_of_an_invite_that_fills_the_disk_is_not_fetched(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    repository = at_hub.repositories[NAME]
    repository.commit("forged", repository.head.files | {RUN_ON_HUB: bytes(MOST_WORD_BYTES + 1)})
    with pytest.raises(InviteError, match="not what a backbone writes"):
        word_of(NAME)
    assert at_hub.count(f"GET .*/{RUN_ON_HUB}") == 0


def test_an_invite_for_one_person_is_never_taken_from_a_repository(at_hub: HubStandIn, tmp_path: Path) -> None:
    key = Identity.from_seed(b"k" * 32)
    grant = Grant(fingerprint=BUNDLE.fingerprint, key=key.peer_id, person="Anna", devices=1, expires_at=9e9,
                  role=Role.TRAINER)  # fmt: skip
    personal = write_invite(replace(INVITE, papers=Papers(grant=pack_grant(grant, OWNER), key=key)), OWNER)
    publish(at_hub, tmp_path, 10, personal)
    with pytest.raises(InviteError, match="something else"):
        word_of(NAME)


def test_a_repository_that_is_not_there_says_what_to_do(at_hub: HubStandIn) -> None:
    with pytest.raises(HubDenied, match="is not there") as told:
        word_of("org/nothing")
    assert "read access" in told.value.hint


def test_a_hub_that_stumbles_is_asked_again_and_not_before_the_time_that_it_names(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float]
) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    at_hub.fault("GET /api/models/.*", 503)
    at_hub.fault("GET /api/models/.*", 429, headers={"Retry-After": "17"})
    assert word_of(NAME) == WORD
    assert pauses == [2.0, 17.0]


@pytest.mark.parametrize(
    ("headers", "waited_s", "hint"),
    [
        ({}, [2.0, 5.0, 10.0, 20.0], "try again in a few minutes"),
        ({"Retry-After": "600"}, [], "try again in 10 min"),
    ],
)
def test_a_hub_that_stays_away_is_asked_for_a_minute_and_the_hint_says_what_to_do(
    at_hub: HubStandIn, pauses: list[float], headers: dict[str, str], waited_s: list[float], hint: str
) -> None:
    at_hub.fault("GET /api/models/.*", 503, times=99, headers=headers)
    with pytest.raises(HubBusy) as told:
        word_of(NAME)
    assert pauses == waited_s
    assert hint in told.value.hint
    assert "it is tried again" not in told.value.hint


def test_a_hub_that_says_nothing_at_each_look_costs_no_more_than_a_minute(
    at_hub: HubStandIn,
    tmp_path: Path,
    pauses: list[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A look that is given up after 20 s counts with what is waited before the next one: 20 + 2 + 20 s."""
    is_over, at_s = threading.Event(), [0.0]

    def say_nothing() -> None:
        at_s[0] += LOOK_S
        is_over.wait(60.0)

    at_hub.fault("GET /api/models/.*", -1, times=99, meanwhile=say_nothing)
    monkeypatch.setattr("collab.checkpoints.hub_repository.LOOK_S", 0.1)
    monkeypatch.setattr("collab.checkpoints.hub_session.time", SimpleNamespace(monotonic=lambda: at_s[0]))
    try:
        for command in (lambda: word_of(NAME), lambda: export_to(NAME, tmp_path / "out")):
            pauses.clear()
            at_s[0] = 0.0
            with pytest.raises(HubBusy, match="could not be reached: ReadTimeout"):
                command()
            assert (pauses, at_s[0]) == ([2.0], 40.0)
            first, second = capsys.readouterr().err.splitlines()
            assert f"of {NAME} on the Hub ..." in first
            assert second.endswith("could not be reached: ReadTimeout; asking again in 2 s")
    finally:
        is_over.set()


def test_while_the_hub_is_away_a_run_is_found_as_it_was_found_last(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    assert word_of(NAME) == WORD
    at_hub.fault("GET /api/models/.*", 503, times=99)
    assert word_of(NAME) == WORD
    assert "going by what was found there last, on 20" in capsys.readouterr().err
    with pytest.raises(HubBusy):
        word_of(f"{NAME}@v1")
    (kept,) = (tmp_path / "data").rglob("*.invite")
    kept.write_text("garbled")
    with pytest.raises(HubBusy):
        word_of(NAME)


def test_a_run_that_is_not_to_be_found_any_more_is_forgotten(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float]
) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    word_of(NAME)
    publish(at_hub, tmp_path, 20, "")
    with pytest.raises(InviteError):
        word_of(NAME)
    at_hub.fault("GET /api/models/.*", 503, times=99)
    with pytest.raises(HubBusy):
        word_of(NAME)


# -- beginning ---------------------------------------------------------------------------------------------------------


def test_the_flag_counts_before_the_run_file_and_none_is_nowhere() -> None:
    assert place_for("", RUN) == HubPlace("org/model")
    assert place_for("other/place", RUN) == HubPlace("other/place")
    assert place_for("none", RUN) is None
    assert place_for("", RUN.model_copy(update={"hub_repo": None})) is None
    with pytest.raises(ConfigError):
        place_for("nonsense", RUN)
    assert place_named("org/model") == HubPlace("org/model")
    assert place_named("none") is place_named("") is None, "of a backbone that joins there is the flag only"


def test_how_often_goes_with_where() -> None:
    place = place_for("", RUN, 5.0)
    service = service_at(place, 5.0, lambda _: None)
    assert service is not None
    assert (service.place, service.every_s) == (HubPlace("org/model"), 300.0)
    assert service_at(None, HUB_EVERY_MIN, lambda _: None) is None
    with pytest.raises(ConfigError, match="--hub-every 5: nothing is published"):
        place_for("none", RUN, 5.0)


def test_a_lost_disk_begins_with_what_the_hub_has(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path / "lost", 10, WORD)
    new = DataDir(tmp_path / "new")
    bring_if_lost(HubPlace(NAME), new, ordered())
    assert verified_state(new.checkpoints / "epoch-00000010")["epoch"] == 10
    publish(at_hub, tmp_path / "lost", 20, WORD)
    at_hub.requests.clear()
    bring_if_lost(HubPlace(NAME), new, ordered())
    assert at_hub.requests == [], "who has something does not even ask"


def test_no_task_can_have_a_file_of_a_name_that_a_page_of_the_repository_has(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    publish(at_hub, tmp_path, 10, WORD)
    files = at_hub.repositories[NAME].head.files
    beside = set(files) - set(FILES) - {".gitattributes"}
    assert {"README.md", "run.yaml", "collab_run.json", "collab_history.json", "loss.svg"} <= beside
    assert [name for name in beside if not why_unfit([name])] == []


def test_a_disk_on_which_every_checkpoint_is_damaged_begins_with_what_the_hub_has(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    new = DataDir(tmp_path)
    publish(at_hub, tmp_path, 10, WORD)
    publish(at_hub, tmp_path, 20, WORD)
    for path in list_checkpoints(new.checkpoints):
        (path / "optimizer.safetensors").write_bytes(b"torn")
    with pytest.raises(StateError, match="no checkpoint on this disk is whole, and what org/model holds cannot be"):
        bring_if_lost(HubPlace(NAME), new, OTHERS_ORDERS)
    bring_if_lost(HubPlace(NAME), new, ordered())
    assert verified_state(new.checkpoints / "epoch-00000020")["epoch"] == 20
    at_hub.requests.clear()
    bring_if_lost(HubPlace(NAME), new, ordered())
    assert at_hub.requests == []


def test_a_damaged_newest_checkpoint_comes_back_from_the_hub_and_without_it_the_one_before_is_gone_on_from(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    new = DataDir(tmp_path)
    publish(at_hub, tmp_path, 10, WORD)
    publish(at_hub, tmp_path, 20, WORD)
    (new.checkpoints / "epoch-00000020" / "optimizer.safetensors").write_bytes(b"torn")
    at_hub.fault("GET /api/models/.*", 503, times=99)
    bring_if_lost(HubPlace(NAME), new, ordered())
    told = capsys.readouterr().err
    assert "problem: the newest checkpoint on this disk is damaged, and org/model cannot help" in told
    at_hub.faults.clear()
    bring_if_lost(HubPlace(NAME), new, ordered())
    assert verified_state(new.checkpoints / "epoch-00000020")["epoch"] == 20


@pytest.mark.parametrize("hears_hub", [True, False])
def test_a_rollback_that_a_kill_cut_short_is_gone_on_with_and_not_what_the_hub_has_from_before_it(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float], capsys: pytest.CaptureFixture[str], hears_hub: bool
) -> None:
    """Everything is set aside, and the checkpoint to go back to was not written anew yet."""
    new = DataDir(tmp_path / "backbone")
    for epoch in (10, 20):
        publish(at_hub, new.path, epoch, WORD)
    what = Rollback(to_epoch=10, lineage=snapshot(10).lineage)
    book = ordered(what)
    disk = LocalPublisher(new.checkpoints, BUNDLE.fingerprint, lambda: FILES, keep=9)
    disk.begin_again(what, book.mark)
    write_orders(new.orders, book)
    if not hears_hub:
        at_hub.fault("GET /api/models/.*", 503, times=99)
    _bring_own(HostOptions(directory=tmp_path, host="", port=0), new, BUNDLE, HubPlace(NAME))
    assert list_checkpoints(new.checkpoints) == []
    said = capsys.readouterr().err
    assert ("the run goes back to a checkpoint on this disk" in said) is not hears_hub
    begun = disk.begin_again(what, book.mark)
    assert begun is not None
    assert (begun.epoch, begun.era) == (10, book.mark)


def test_a_new_run_begins_where_its_repository_is_not_there_or_is_empty(
    at_hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_if_lost(HubPlace(NAME), DataDir(tmp_path), ordered())
    assert at_hub.repositories[NAME].private, "made, which only who may publish there can do"
    for repository in (Repository(private=True), Repository()):
        at_hub.repositories[NAME] = repository
        bring_if_lost(HubPlace(NAME), DataDir(tmp_path), ordered())
    assert not (tmp_path / "checkpoints").exists()
    assert capsys.readouterr().err == ""


def lose_token(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """As on a new machine, where nobody has logged in."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(directory / "no-token"))


EXPIRED, OF_SOMEBODY = "hf_" + "expired", "hf_" + "somebody"


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("", "may not see it"),
        (EXPIRED, "missing, wrong or has expired"),
        (OF_SOMEBODY, "may not do that|may not see it"),
    ],
)
def test_a_run_is_not_begun_anew_by_who_may_not_see_whether_it_has_a_state(
    at_hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, said: str, is_there: bool
) -> None:
    """The disk is lost, and with it the login, or the token has expired, or it is another account's."""
    if is_there:
        publish(at_hub, tmp_path / "lost", 10, WORD)
    at_hub.others.add(OF_SOMEBODY)
    lose_token(monkeypatch, tmp_path)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(HubDenied, match=said) as told:
        bring_if_lost(HubPlace(NAME), DataDir(tmp_path / "new"), ordered())
    assert "nothing is on this disk" in told.value.message
    assert "hf auth login" in told.value.hint
    assert "--hub-repo none" in told.value.hint


def test_a_backbone_that_joins_says_so_and_has_the_state_from_the_swarm(
    at_hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(at_hub, tmp_path / "lost", 10, WORD)
    monkeypatch.setenv("HF_TOKEN", EXPIRED)
    bring_if_lost(HubPlace(NAME), DataDir(tmp_path / "new"), ordered(), makes_first_state=False)
    said = capsys.readouterr().err
    assert "problem: " in said
    assert "the state comes from the swarm" in said
    assert "hf auth login" in said


@pytest.mark.parametrize("has_state", [True, False])
def test_a_machine_without_a_token_says_at_the_start_that_nothing_can_be_published(
    at_hub: HubStandIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has_state: bool,
) -> None:
    """It goes on with what is on its disk, or begins where everybody can see that there is nothing."""
    new = tmp_path / "new"
    if has_state:
        publish(at_hub, new, 10, WORD)
    at_hub.repositories[NAME] = Repository()
    lose_token(monkeypatch, tmp_path)
    bring_if_lost(HubPlace(NAME), DataDir(new), ordered())
    said = capsys.readouterr().err
    assert "problem: nothing can be published in org/model" in said
    assert "hf auth login" in said


def test_a_run_is_not_begun_anew_where_the_hub_holds_a_state_that_cannot_be_taken_over(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    with pytest.raises(StateError, match="belongs to the run with fingerprint") as told:
        bring_if_lost(HubPlace(NAME), DataDir(tmp_path / "new"), OTHERS_ORDERS)
    assert "--hub-repo none" in told.value.hint
    repository = at_hub.repositories[NAME]
    repository.commit("torn", repository.head.files | {"model.safetensors": b"torn"})
    with pytest.raises(CorruptState, match="cannot be taken over") as told:
        bring_if_lost(HubPlace(NAME), DataDir(tmp_path / "new"), ordered())
    assert "try an earlier revision" in told.value.hint


def test_a_run_is_not_begun_anew_while_nobody_knows_whether_it_has_a_state(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float]
) -> None:
    at_hub.fault("GET /api/models/.*", 503, times=99)
    with pytest.raises(HubBusy, match="cannot be seen") as told:
        bring_if_lost(HubPlace(NAME), DataDir(tmp_path), ordered())
    assert "--hub-repo none" in told.value.hint


def bring_own(directory: Path, begin_with: str, bundle: Bundle) -> None:
    """As 'collab-peer backbone DIR --from ...' does."""
    directory.mkdir(exist_ok=True)
    options = HostOptions(directory=directory, host="", port=0, begin_with=begin_with)
    _bring_own(options, DataDir(directory / "backbone"), bundle, None)


def test_a_run_goes_on_from_a_revision_or_not_at_all_where_that_is_not_later(
    at_hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for epoch in (10, 20):
        publish(at_hub, tmp_path / "theirs", epoch, WORD)
    first = at_hub.repositories[NAME].commits[1].id
    checkpoints = tmp_path / "run" / "backbone" / "checkpoints"
    for revision, expected, said in (
        (f"@{first}", 10, f"took over epoch-00000010 from org/model@{first}"),
        (f"@{first}", 10, f"epoch-00000010 is on this disk already, as org/model@{first} has it"),
        ("", 20, "took over epoch-00000020 from org/model"),
        ("", 20, "epoch-00000020 is on this disk already"),
    ):
        bring_own(tmp_path / "run", NAME + revision, BUNDLE)
        assert verified_state(checkpoint_in(tmp_path / "run"))["epoch"] == expected
        assert said in capsys.readouterr().err
    with pytest.raises(StateError, match="this disk keeps its epoch 20, which is not earlier") as told:
        bring_own(tmp_path / "run", f"{NAME}@{first}", BUNDLE)
    assert "'collab-peer rollback DIR 10' takes the whole run back" in told.value.hint
    assert {path.name for path in checkpoints.glob("epoch-*")} == {"epoch-00000010", "epoch-00000020"}


def test_what_is_kept_here_in_place_of_what_the_hub_has_is_said(
    at_hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    publish(at_hub, tmp_path / "run" / "backbone", 10, WORD)
    ours = save_checkpoint(tmp_path / "run" / "backbone" / "checkpoints", snapshot(30), fingerprint=BUNDLE.fingerprint,
                           files=FILES, metrics={})  # fmt: skip
    bring_own(tmp_path / "run", NAME, BUNDLE)
    said = capsys.readouterr().err
    assert "epoch 10 of org/model is not taken over: this disk keeps its epoch 30" in said
    assert "-> start without --from; 'collab-peer rollback DIR 10'" in said
    assert checkpoint_in(tmp_path / "run") == ours.path


@pytest.mark.parametrize("name", [NAME, f"{NAME}@v1"])
def test_a_run_that_shall_begin_from_a_repository_without_a_checkpoint_does_not_begin(
    at_hub: HubStandIn, tmp_path: Path, name: str
) -> None:
    at_hub.repositories[NAME] = Repository()
    at_hub.repositories[NAME].commits[0].id = "v1"
    with pytest.raises(StateError, match="holds no checkpoint"):
        bring_own(tmp_path / "run", name, BUNDLE)


def test_another_owners_run_is_begun_with_only_under_a_new_owner(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    mine = Bundle(RUN, {}, STRANGER.peer_id)
    with pytest.raises(StateError, match="belongs to the run with fingerprint") as told:
        bring_own(tmp_path / "mine", NAME, mine)
    assert "--new-owner" in told.value.hint
    found = take_up(NAME, RUN, tmp_path / "mine", DataDir(tmp_path / "mine" / "backbone"))
    begun = carry_on(found, fingerprint=mine.fingerprint)
    assert begun.epoch == 10
    assert np.array_equal(begun.tensors["model.layer.weight"], snapshot(10).tensors["model.layer.weight"])


def test_what_is_neither_here_nor_a_repository_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a repository of the Hub"):
        bring_own(tmp_path, "no-such-checkpoint", BUNDLE)


def test_a_new_owner_has_the_run_file_from_the_repository_unless_there_is_one(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    place = tmp_path / "mine"
    bring_run_file(NAME, place)
    carried = load_run(place / "run.yaml")
    assert carried == RUN.model_copy(update={"hub_repo": None}), "it publishes nowhere unless its owner says so"
    (place / "run.yaml").write_text("{run_id: mine, task: {name: image_classification}}")
    bring_run_file(NAME, place)
    assert load_run(place / "run.yaml").run_id == "mine"
    load_or_create_identity(place / "owner.key")
    with pytest.raises(ConfigError, match="has an owner already"):
        bring_run_file(NAME, place)


def test_a_run_file_that_is_larger_than_any_is_not_fetched(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    held = at_hub.repositories[NAME]
    held.commit("changed", held.head.files | {"run.yaml": b"#" * (MOST_RUN_FILE_BYTES + 1)})
    at_hub.requests.clear()
    with pytest.raises(CorruptState, match=r"run\.yaml of org/model is larger") as told:
        bring_run_file(NAME, tmp_path / "mine")
    assert "take the repository back" in told.value.hint
    assert at_hub.count("GET .*/run.yaml") == 0
    assert not (tmp_path / "mine" / "run.yaml").exists()


# -- export ------------------------------------------------------------------------------------------------------------


def test_what_is_exported_from_the_hub_loads_with_transformers(
    at_hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("\n".join(f"line {number * number % 97} of many" for number in range(3000)))
    content: dict[str, Any] = {
        "run_id": "my-run",
        "task": {
            "name": "causal_lm", "sequence_length": 16, "vocab_size": 300,
            "model": {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2},
            "data": {"source": "files", "path": str(tmp_path / "text.txt")},
        },
    }  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = parse_run(yaml.safe_dump(content), origin="the test")
    bundle = Bundle(run, load_assets(run, tmp_path), OWNER.peer_id)
    task = build_task(run, assets=bundle.assets, cache_dir=tmp_path / "cache", peer_id="")
    made = make_genesis(bundle, task)
    disk = LocalPublisher(tmp_path / "backbone" / "checkpoints", bundle.fingerprint, task.checkpoint_files, keep=3)
    digest = pack(made, fingerprint=bundle.fingerprint).manifest.digest
    wanted = order(0, Tenure(1, A))
    publication = replace(wanted.publication, digest=digest, lineage=made.lineage, epoch=made.epoch)
    wanted = replace(wanted, publication=publication)
    path = disk.publish(made, wanted).path
    seen = Seen(curves=dict, given=list, orders=lambda: OrderBook(bundle.fingerprint, OWNER.peer_id))
    pages = HubPages(NAME, bundle, seen, "")
    HubPublisher(HubRepository(HubPlace(NAME)), tmp_path / "outbox", pages.beside).publish(path, wanted)
    assert checkpoint_in(tmp_path) == path

    export_to(NAME, tmp_path / "from-hub")
    export_to(str(tmp_path), tmp_path / "from-disk")
    for folder in ("from-hub", "from-disk"):
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / folder)
        expected = torch.from_numpy(made.tensors["model.transformer.wte.weight"].copy())
        assert torch.equal(model.state_dict()["transformer.wte.weight"], expected)
        assert tokenizer.decode(tokenizer("line 4 of many")["input_ids"]) == "line 4 of many"
    assert not list(tmp_path.glob(".from-*"))
    assert at_hub.count("GET .*/optimizer.safetensors") == 0, "two thirds, and of no use to anybody here"


def test_where_there_is_no_checkpoint_the_message_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no checkpoint in") as told:
        export_to(str(tmp_path), tmp_path / "out")
    assert "owner/name" in told.value.hint


def test_an_export_that_breaks_off_goes_on_where_it_was(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float]
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    at_hub.fault("GET .*/model.safetensors", 503, times=99)
    with pytest.raises(HubBusy, match="503") as told:
        export_to(NAME, tmp_path / "out")
    unfinished = tmp_path / ".out.unfinished-from-hub"
    assert f"what has arrived is in {unfinished}, and the same command goes on from there" in told.value.hint
    at_hub.faults.clear()
    at_hub.requests.clear()
    export_to(NAME, tmp_path / "out")
    assert at_hub.count("GET .*/config.json") == 0, "it was there"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert not unfinished.exists()


def test_an_export_is_refused_before_anything_is_fetched(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    at_hub.requests.clear()
    for target in (tmp_path, Path(".")):
        with pytest.raises(CheckpointFailed, match="exists already"):
            export_to(NAME, target)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFailed, match="could not be read or written"):
        export_to(NAME, tmp_path / "file" / "out")
    assert at_hub.requests == []


# -- another owner -----------------------------------------------------------------------------------------------------


def test_a_new_owners_run_tells_what_the_run_has_been_that_it_goes_on_from(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    report(tmp_path / "theirs", 10, 2.0)
    publish(at_hub, tmp_path / "theirs", 10, WORD, {**ANNA, "b": given_by("", 100)})
    mine = tmp_path / "mine" / "backbone"
    mine.mkdir(parents=True)
    take_up(NAME, RUN, tmp_path / "mine", DataDir(mine))
    assert kept_history(DataDir(mine).hub_history).curves["loss"] == {10: 2.0}
    del at_hub.repositories[NAME]
    new_owner = Bundle(RUN, {}, STRANGER.peer_id)
    report(mine, 20, 1.0)
    publish(at_hub, mine, 20, "", {"a": given_by("Anna", 60)}, bundle=new_owner)
    assert told_losses(at_hub) == {10: 2.0, 20: 1.0}
    assert "- Anna: 700 samples\n- 1 more machine" in card(at_hub)


def test_a_name_that_was_taken_back_comes_with_no_earlier_revision(at_hub: HubStandIn, tmp_path: Path) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD, {**ANNA, "b": given_by("Bob", 30)})
    earlier = at_hub.repositories[NAME].head.id
    publish(at_hub, tmp_path / "theirs", 20, WORD, {**ANNA, "b": given_by("", 40, 5.0)})
    mine = tmp_path / "mine" / "backbone"
    mine.mkdir(parents=True)
    take_up(f"{NAME}@{earlier}", RUN, tmp_path / "mine", DataDir(mine))
    (told,) = kept_history(DataDir(mine).hub_history).runs.values()
    assert [name for name, _ in told.named.values()] == ["Anna"]
    assert (told.machines, told.samples) == (2, 670), "its work counts, as of then"


def test_a_name_of_an_earlier_run_is_gone_for_good_once_somebody_has_taken_it_out_of_the_file(
    at_hub: HubStandIn, tmp_path: Path
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD, {**ANNA, "b": given_by("Bob", 30)})
    mine = tmp_path / "mine" / "backbone"
    mine.mkdir(parents=True)
    take_up(NAME, RUN, tmp_path / "mine", DataDir(mine))
    del at_hub.repositories[NAME]
    new_owner = Bundle(RUN, {}, STRANGER.peer_id)
    publish(at_hub, mine, 20, "", {}, bundle=new_owner)
    held = at_hub.repositories[NAME]
    told = json.loads(held.head.files[HISTORY])
    (run,) = told["runs"].values()
    (digest,) = [key for key, (name, _) in run["named"].items() if name == "Bob"]
    del run["named"][digest]
    held.commit("edited", held.head.files | {HISTORY: json.dumps(told, indent=1).encode()})
    for epoch in (30, 40):
        publish(at_hub, mine, epoch, "", {}, bundle=new_owner)
        assert "- Anna: 640 samples\n- 1 more machine" in card(at_hub)
        assert b"Bob" not in head(at_hub)[HISTORY]


def test_a_new_owners_run_whose_download_was_cut_begins_with_it_also_when_that_is_not_said_again(
    at_hub: HubStandIn, tmp_path: Path, pauses: list[float]
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    mine = tmp_path / "mine"
    at_hub.fault("GET .*/model.safetensors", 503, times=99)
    with pytest.raises(HubBusy):
        take_up(NAME, RUN, mine, DataDir(mine / "backbone"))
    at_hub.faults.clear()
    assert told_before(mine) == NAME
    assert verified_state(take_up(NAME, RUN, mine, DataDir(mine / "backbone")))["epoch"] == 10


def test_what_is_taken_over_from_another_repository_goes_on_in_ours(at_hub: HubStandIn, tmp_path: Path) -> None:
    report(tmp_path / "theirs", 10, 2.0)
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    bring_own(tmp_path / "run", NAME, BUNDLE)
    assert kept_history(DataDir(tmp_path / "run" / "backbone").hub_history).curves["loss"] == {10: 2.0}


def test_a_history_that_cannot_be_had_or_kept_does_not_keep_a_backbone_from_beginning(
    at_hub: HubStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(at_hub, tmp_path / "theirs", 10, WORD)
    held = at_hub.repositories[NAME]
    held.commit("forged", held.head.files | {HISTORY: b"{"})
    bring_own(tmp_path / "run", NAME, BUNDLE)
    assert "problem: collab_history.json of org/model is not what a backbone writes" in capsys.readouterr().err
    at_hub.fault(f"HEAD .*/{HISTORY}", 503)
    shutil.rmtree(tmp_path / "run")
    bring_own(tmp_path / "run", NAME, BUNDLE)
    assert "are not taken over: the Hub answered 503" in capsys.readouterr().err
    path = DataDir(tmp_path / "run" / "backbone").hub_history
    assert kept_history(path) == History()
    path.write_bytes(b"{")
    assert kept_history(path) == History()
