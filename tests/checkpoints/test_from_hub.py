"""What comes from the Hub is checked to the last byte, and taken only where it is later than what is here."""

import errno
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from collab.checkpoints.from_hub import Brought, bring_newest, export, fetch_checkpoint
from collab.checkpoints.hub_repository import HubPlace, HubRepository
from collab.checkpoints.local import list_checkpoints, load_checkpoint, load_newest, save_checkpoint, state_bytes
from collab.checkpoints.local_publisher import LocalPublisher
from collab.checkpoints.rolled_back import set_aside
from collab.errors import CheckpointFailed, CorruptState, HubBusy, HubDenied, HubError, StateError
from collab.swarm.lease import Tenure
from collab.swarm.orders import Order, OrderBook
from collab.swarm.statements import Rollback
from collab.types import PeerId
from tests.checkpoints.test_hub_publisher import NAME, Shop
from tests.checkpoints.test_local import FILES, check_equal, snapshot
from tests.checkpoints.test_local_publisher import order
from tests.hub.client import hub
from tests.hub.standin import HubStandIn, Repository

__all__ = ["hub"]
A = PeerId("a")


@pytest.fixture
def published(tmp_path: Path, hub: HubStandIn) -> HubStandIn:
    """Epochs 10 and 20 of the run ``f``."""
    shop = Shop(tmp_path / "theirs", hub)
    for epoch in (10, 20):
        shop.publish(epoch, Tenure(1, A), value=float(epoch))
    return hub


def repository(server: HubStandIn, revision: str = "main") -> HubRepository:
    return HubRepository(HubPlace(NAME, revision), endpoint=server.url)


def change(server: HubStandIn, **files: bytes) -> None:
    """Somebody commits other files; underscores stand for points."""
    held = server.repositories[NAME]
    held.commit("changed", held.head.files | {name.replace("__", "."): data for name, data in files.items()})


def test_a_checkpoint_comes_back_as_it_was(published: HubStandIn, tmp_path: Path) -> None:
    path = fetch_checkpoint(repository(published), tmp_path / "new", fingerprint="f")
    check_equal(load_checkpoint(path, fingerprint="f"), snapshot(20, 20.0))
    assert not (path / ".cache").exists()


def test_an_earlier_revision_can_be_named(published: HubStandIn, tmp_path: Path) -> None:
    commit = published.repositories[NAME].commits[1].id
    path = fetch_checkpoint(repository(published, commit), tmp_path / "new")
    check_equal(load_checkpoint(path, fingerprint="f"), snapshot(10, 10.0))
    with pytest.raises(HubDenied, match="no such revision"):
        fetch_checkpoint(repository(published, "v9"), tmp_path / "new")


def test_a_download_that_broke_off_is_taken_up(published: HubStandIn, tmp_path: Path) -> None:
    published.fault(".*/optimizer.safetensors", 503, headers={"Retry-After": "3"})
    with pytest.raises(HubBusy) as told:
        fetch_checkpoint(repository(published), tmp_path / "new")
    assert told.value.retry_after_s == 3.0
    path = fetch_checkpoint(repository(published), tmp_path / "new")
    check_equal(load_checkpoint(path, fingerprint="f"), snapshot(20, 20.0))
    assert published.count("GET .*/model.safetensors") == 1


def test_a_state_file_without_digests_is_said_in_words(published: HubStandIn, tmp_path: Path) -> None:
    state = json.loads(published.repositories[NAME].head.files["collab_state.json"])
    del state["sha256"]
    change(published, collab_state__json=state_bytes(state))
    for fetch in (lambda: fetch_checkpoint(repository(published), tmp_path / "new"),
                  lambda: bring_newest(repository(published), tmp_path / "new", fingerprint="f")):  # fmt: skip
        with pytest.raises(HubDenied, match="not what a backbone writes") as told:
            fetch()
        assert told.value.hint


def test_a_changed_file_is_found_and_nothing_of_it_stays(published: HubStandIn, tmp_path: Path) -> None:
    change(published, model__safetensors=b"torn")
    with pytest.raises(CorruptState, match=r"model\.safetensors"):
        fetch_checkpoint(repository(published), tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_another_runs_checkpoint_is_refused_before_it_is_fetched(published: HubStandIn, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="fingerprint f, this run's is mine"):
        fetch_checkpoint(repository(published), tmp_path / "new", fingerprint="mine")
    assert published.count("GET .*/model.safetensors") == 0


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a/b", ".hidden", "x" * 200])
def test_a_name_that_leaves_the_folder_is_no_file_of_a_checkpoint(
    published: HubStandIn, tmp_path: Path, name: str
) -> None:
    state = json.loads(published.repositories[NAME].head.files["collab_state.json"])
    state["sha256"][name] = hashlib.sha256(b"").hexdigest()
    del state["sha256_of_state"]
    change(published, collab_state__json=state_bytes(state), **{name: b""})
    with pytest.raises(CorruptState, match="files that no checkpoint has"):
        fetch_checkpoint(repository(published), tmp_path / "new")


def test_a_repository_without_a_checkpoint_says_so(hub: HubStandIn, tmp_path: Path) -> None:
    hub.repositories[NAME] = Repository()
    with pytest.raises(HubDenied, match=r"has no collab_state\.json"):
        fetch_checkpoint(repository(hub), tmp_path / "new")
    assert bring_newest(repository(hub), tmp_path / "new", fingerprint="f").path is None


def test_a_private_repository_is_not_there_without_a_token(
    published: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: None)
    with pytest.raises(HubDenied, match="may not see it") as told:
        fetch_checkpoint(HubRepository(HubPlace(NAME), endpoint=published.url, advice="log in"), tmp_path / "new")
    assert "log in" in told.value.hint


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some space"),
        (errno.EIO, "the disk itself fails"),
        (errno.EROFS, "name another directory"),
    ],
)
def test_a_disk_that_takes_no_download_is_not_told_as_the_hubs_fault(
    published: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    """For each file and for what is read on the way; the client raises what the system said, and names no file."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    head = repository(published).head()
    monkeypatch.setattr("huggingface_hub.file_download.http_get", fails)
    with pytest.raises(CheckpointFailed) as told:
        repository(published).fetch(["model.safetensors"], head, tmp_path / "new")
    assert str(tmp_path / "new") in told.value.message
    assert os.strerror(number) in told.value.message
    assert hint in told.value.hint
    with pytest.raises(CheckpointFailed, match=os.strerror(number)):
        fetch_checkpoint(repository(published), tmp_path / "new")


def test_a_file_in_the_way_of_a_download_is_named(published: HubStandIn, tmp_path: Path) -> None:
    commit = published.repositories[NAME].head.id
    (tmp_path / "new" / commit).mkdir(parents=True)
    (tmp_path / "new" / commit / ".cache").write_bytes(b"")
    with pytest.raises(CheckpointFailed, match=r"\.cache.* could not be read or written on this machine"):
        fetch_checkpoint(repository(published), tmp_path / "new")


# -- which one counts --------------------------------------------------------------------------------------------------


def test_an_empty_disk_gets_the_newest_one(published: HubStandIn, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    found = bring_newest(repository(published), root, fingerprint="f")
    assert found == Brought(path=root / "epoch-00000020")
    check_equal(load_newest(root, fingerprint="f"), snapshot(20, 20.0))
    assert {path.name for path in root.iterdir()} == {"epoch-00000020", "publishing.json"}


@pytest.mark.parametrize(("epoch", "expected"), [(10, 20), (20, 20), (30, 30)])
def test_the_later_one_of_hub_and_disk_counts(published: HubStandIn, tmp_path: Path, epoch: int, expected: int) -> None:
    root = tmp_path / "checkpoints"
    save_checkpoint(root, snapshot(epoch, 7.0), fingerprint="f", files=FILES, metrics={})
    found = bring_newest(repository(published), root, fingerprint="f")
    assert (found.path is not None) is (epoch < 20)
    if epoch >= 20:
        assert f"this disk keeps its epoch {epoch}, which is not earlier" in found.why
        assert "'collab-peer rollback DIR 20'" in found.hint
    held = load_newest(root, fingerprint="f")
    assert held is not None
    assert held.epoch == expected


@pytest.mark.parametrize("held", [None, 10, 30])
def test_the_next_lease_comes_after_that_under_which_the_hubs_was_published(
    published: HubStandIn, tmp_path: Path, held: int | None
) -> None:
    """Found at the Hub only: the checkpoint itself was published under an earlier one, and our disk has forgotten."""
    shop = Shop(tmp_path / "theirs", published)
    path, wanted = shop.save(25, Tenure(1, A))
    shop.hub.publish(path, replace(wanted, authority=Tenure(7, A)))
    root = tmp_path / "checkpoints"
    if held is not None:
        save_checkpoint(root, snapshot(held, 7.0), fingerprint="f", files=FILES, metrics={})
    bring_newest(repository(published), root, fingerprint="f")
    assert LocalPublisher(root, "f", lambda: FILES, keep=3).highest() == Tenure(7, A)


def test_what_was_rolled_back_does_not_come_back_from_the_hub(published: HubStandIn, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    begun = replace(snapshot(10, 7.0), era="mark of a rollback")
    save_checkpoint(root, begun, fingerprint="f", files=FILES, metrics={})
    found = bring_newest(repository(published), root, fingerprint="f")
    assert found.path is None
    assert "another history" in found.why
    assert f"move {root} away" in found.hint


def ordered_back_to(*epochs: int) -> OrderBook:
    """Rollbacks, one after the other."""
    whats = [Rollback(to_epoch=epoch, lineage=snapshot(epoch).lineage) for epoch in epochs]
    orders = (Order(number=n, said_at=0.0, what=what, mark=f"{n}" * 16) for n, what in enumerate(whats, 1))
    return OrderBook("f", A, tuple(orders))


@pytest.mark.parametrize("holds", [True, False])
def test_what_a_rollback_has_undone_is_taken_only_where_this_disk_cannot_go_back(
    published: HubStandIn, tmp_path: Path, holds: bool
) -> None:
    """Then one can go back to it, once it is set aside; from there it is not fetched again."""
    root, back = tmp_path / "checkpoints", ordered_back_to(10)
    mark = back.eras()[-1]
    disk = LocalPublisher(root, "f", lambda: FILES, keep=3)
    if holds:
        disk.keep(snapshot(10, 10.0), "d" * 64, 1.0)
        set_aside(root, mark)
    found = bring_newest(repository(published), root, fingerprint="f", orders=back)
    assert (found.path is None) is holds
    set_aside(root, mark)
    assert bring_newest(repository(published), root, fingerprint="f", orders=back).path is None


@pytest.mark.parametrize("is_known", [True, False])
def test_what_the_hub_has_of_the_history_that_a_rollback_began_is_taken(
    hub: HubStandIn, tmp_path: Path, is_known: bool
) -> None:
    """Another backbone has gone on while this one was away, between setting aside and going back; perhaps after one
    more rollback, of which this disk has not heard.
    """
    root, back = tmp_path / "checkpoints", ordered_back_to(10)
    mark = back.eras()[-1]
    disk = LocalPublisher(root, "f", lambda: FILES, keep=3)
    disk.keep(snapshot(10, 10.0), "d" * 64, 1.0)
    set_aside(root, mark)
    theirs, wanted = Shop(tmp_path / "theirs", hub), order(20, Tenure(1, A))
    state = replace(snapshot(20), era=mark if is_known else "2" * 16)
    theirs.hub.publish(theirs.disk.publish(state, wanted).path, wanted)
    found = bring_newest(repository(hub), root, fingerprint="f", orders=back)
    assert found == Brought(path=root / "epoch-00000020")


@pytest.mark.parametrize("goes_on_without", [True, False])
def test_of_a_download_that_broke_off_nothing_stays_once_the_backbone_has_saved_a_checkpoint(
    published: HubStandIn, tmp_path: Path, goes_on_without: bool
) -> None:
    """Such as of one that has joined, and had the state from the swarm; until then it is taken up."""
    root = tmp_path / "checkpoints"
    published.fault(".*/optimizer.safetensors", 503)
    with pytest.raises(HubBusy):
        bring_newest(repository(published), root, fingerprint="f")
    if goes_on_without:
        LocalPublisher(root, "f", lambda: FILES, keep=3).keep(snapshot(30), "d" * 64, 1.0)
    else:
        assert bring_newest(repository(published), root, fingerprint="f").is_new
        assert published.count("GET .*/model.safetensors") == 1
    kept = "epoch-00000030" if goes_on_without else "epoch-00000020"
    assert sorted(path.name for path in root.iterdir()) == [kept, "publishing.json"]


def test_what_is_here_already_is_not_fetched_again(published: HubStandIn, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    bring_newest(repository(published), root, fingerprint="f")
    published.requests.clear()
    found = bring_newest(repository(published), root, fingerprint="f")
    assert found == Brought(path=root / "epoch-00000020", is_new=False)
    assert published.count("GET .*/model.safetensors") == 0


@pytest.mark.parametrize("epoch", [10, 20, 30])
def test_of_a_disk_on_which_none_is_whole_the_hubs_takes_the_place_and_the_damaged_ones_are_put_aside(
    published: HubStandIn, tmp_path: Path, epoch: int
) -> None:
    root = tmp_path / "checkpoints"
    path = save_checkpoint(root, snapshot(epoch), fingerprint="f", files=FILES, metrics={}).path
    (path / "model.safetensors").write_bytes(b"torn")
    assert bring_newest(repository(published), root, fingerprint="f").path == root / "epoch-00000020"
    assert [one.name for one in list_checkpoints(root)] == ["epoch-00000020"]
    check_equal(load_newest(root, fingerprint="f"), snapshot(20, 20.0))
    assert (root / "damaged" / path.name / "model.safetensors").read_bytes() == b"torn"


def test_nothing_is_put_aside_while_the_hub_gives_nothing(published: HubStandIn, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    path = save_checkpoint(root, snapshot(30), fingerprint="f", files=FILES, metrics={}).path
    (path / "model.safetensors").write_bytes(b"torn")
    published.fault("GET .*/model.safetensors", 403, times=9)
    with pytest.raises(HubError):
        bring_newest(repository(published), root, fingerprint="f")
    assert list_checkpoints(root) == [path]


# -- export ------------------------------------------------------------------------------------------------------------


def saved(root: Path) -> Path:
    return save_checkpoint(root, snapshot(12), fingerprint="f", files=FILES, metrics={}).path


def test_an_export_holds_what_others_load_and_nothing_of_the_optimiser(tmp_path: Path) -> None:
    path, target = saved(tmp_path), tmp_path / "out" / "model"
    assert export(path, target) == 12
    assert {file.name for file in target.iterdir()} == {"model.safetensors", *FILES}
    assert (target / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    assert [one.name for one in target.parent.iterdir()] == ["model"]


def test_nothing_is_exported_over_something_or_from_something_damaged(tmp_path: Path) -> None:
    path, target = saved(tmp_path), tmp_path / "out"
    target.mkdir()
    with pytest.raises(CheckpointFailed, match="exists already"):
        export(path, target)
    (path / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CorruptState):
        export(path, tmp_path / "other")
    assert not (tmp_path / "other").exists()
