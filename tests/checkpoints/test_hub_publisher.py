"""Checkpoints on the Hub: one whole commit each, by one backbone at a time, whatever the Hub and the network do."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collab.checkpoints.base import Order
from collab.checkpoints.hub_publisher import Beside, HubPublisher, OnHub, Staged
from collab.checkpoints.hub_repository import Change, HubPlace, HubRepository, There
from collab.checkpoints.local import list_checkpoints
from collab.checkpoints.local_publisher import LocalPublisher
from collab.errors import CheckpointFailed, ConfigError, CorruptState, Fenced, HubBusy, HubDenied
from collab.swarm.lease import MAX_TERM, Tenure
from collab.swarm.snapshots import pack
from collab.types import PeerId
from tests.checkpoints.test_local import snapshot
from tests.checkpoints.test_local_publisher import FILES, order
from tests.hub.client import hub
from tests.hub.standin import TOKEN, HubStandIn, Repository

__all__ = ["hub"]
A, B = PeerId("a"), PeerId("b")
NAME = "org/model"
WHERE = "where.txt"


class Shop:
    """One backbone's disk, and its way to the Hub."""

    def __init__(self, root: Path, server: HubStandIn) -> None:
        self.root = root
        self.disk = LocalPublisher(root, "f", lambda: FILES, keep=3)
        repository = HubRepository(HubPlace(NAME), endpoint=server.url)
        self.where = b"here"
        """The run is, as its pages say."""
        self.hub = HubPublisher(repository, root / "outbox", self.beside, self.misleads)

    def beside(self, staged: Staged, there: There) -> Beside:
        pages = {"README.md": f"# epoch {staged.state['epoch']}\n".encode(), WHERE: self.where}
        return Beside(files=pages, figures={"loss": 1.5})

    def misleads(self, there: There) -> bool:
        return there.read(WHERE, 100) != self.where

    def save(self, epoch: int, tenure: Tenure, value: float = 1.0) -> tuple[Path, Order]:
        """On the disk, as its publisher does."""
        wanted = order(epoch, tenure, value=value)
        return self.disk.publish(snapshot(epoch, value), wanted).path, wanted

    def publish(self, epoch: int, tenure: Tenure, value: float = 1.0) -> OnHub:
        """On the disk, and then on the Hub."""
        return self.hub.publish(*self.save(epoch, tenure, value))


@pytest.fixture
def shop(tmp_path: Path, hub: HubStandIn) -> Shop:
    return Shop(tmp_path / "ours", hub)


def epochs(server: HubStandIn) -> list[int]:
    """Of all commits but the first; each is whole."""
    return [check_whole(commit.files) for commit in server.repositories[NAME].commits[1:]]


def check_whole(files: dict[str, bytes]) -> int:
    """The epoch of a commit whose files are all of one checkpoint."""
    import hashlib

    state = json.loads(files["collab_state.json"])
    for name, digest in state["sha256"].items():
        assert hashlib.sha256(files[name]).hexdigest() == digest, name
    assert files["README.md"] == f"# epoch {state['epoch']}\n".encode()
    return int(state["epoch"])


def test_a_checkpoint_is_one_commit_with_all_its_files_in_a_repository_that_is_made_private(
    shop: Shop, hub: HubStandIn
) -> None:
    done = shop.publish(10, Tenure(2, A))
    assert done.is_new
    assert epochs(hub) == [10]
    repository = hub.repositories[NAME]
    assert repository.private
    assert repository.head.id == done.commit
    assert repository.head.title == "epoch 10, loss 0.5000"
    state = json.loads(repository.head.files["collab_state.json"])
    assert state["hub"] == {"term": 2, "holder": "a", "loss": 1.5}
    path = list_checkpoints(shop.root)[0]
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        assert repository.head.files[name] == (path / name).read_bytes()
    assert not (shop.root / "outbox").exists()


def test_checkpoints_follow_each_other_and_files_that_are_gone_go(shop: Shop, hub: HubStandIn, tmp_path: Path) -> None:
    shop.publish(10, Tenure(1, A))
    hub.repositories[NAME].commit("somebody adds a licence", hub.repositories[NAME].head.files | {"LICENSE": b"x"})
    later = Shop(tmp_path / "ours", hub)
    later.disk = LocalPublisher(later.root, "f", lambda: {"other.json": b"{}"}, keep=3)
    later.publish(20, Tenure(1, A))
    head = hub.repositories[NAME].head.files
    assert check_whole(head) == 20
    assert "other.json" in head
    assert "config.json" not in head
    assert "LICENSE" in head


def test_what_is_there_already_is_not_published_again_also_not_under_another_tenure(
    shop: Shop, hub: HubStandIn
) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    assert shop.hub.publish(path, wanted).is_new
    assert not shop.hub.publish(path, wanted).is_new
    assert not shop.hub.publish(path, replace(wanted, authority=Tenure(5, B))).is_new
    assert not shop.hub.publish(path, replace(wanted, authority=Tenure(0, B))).is_new
    assert epochs(hub) == [10]


def test_the_same_checkpoint_is_committed_once_more_where_the_run_is_elsewhere_by_now(
    shop: Shop, hub: HubStandIn
) -> None:
    """As after a total loss, or a move to another address; nothing large is sent again."""
    path, wanted = shop.save(10, Tenure(1, A))
    assert shop.hub.publish(path, wanted).is_new
    sent, shop.where = hub.sent_bytes, b"there"
    again = shop.hub.publish(path, replace(wanted, authority=Tenure(2, A)))
    assert again.is_new
    head = hub.repositories[NAME].head
    assert (again.commit, head.title) == (head.id, "epoch 10, loss 0.5000, and where its run is now")
    assert head.files[WHERE] == b"there"
    assert epochs(hub) == [10, 10], "both are whole"
    assert json.loads(head.files["collab_state.json"])["hub"]["term"] == 2
    assert hub.sent_bytes == sent
    assert not shop.hub.publish(path, replace(wanted, authority=Tenure(3, A))).is_new


def test_where_the_run_is_stays_as_a_later_tenure_has_said_it(shop: Shop, hub: HubStandIn, tmp_path: Path) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    shop.hub.publish(path, replace(wanted, authority=Tenure(5, B)))
    shop.where = b"there"
    assert not shop.hub.publish(path, replace(wanted, authority=Tenure(4, A))).is_new
    with pytest.raises(Fenced):
        shop.hub.publish(path, replace(wanted, authority=Tenure(5, B), may_finish=lambda: False))
    assert hub.repositories[NAME].head.files[WHERE] == b"here"


def test_a_file_that_is_larger_than_anything_of_ours_is_not_even_fetched(shop: Shop, hub: HubStandIn) -> None:
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit("large", {"notes.txt": bytes(1000)})
    repository = HubRepository(HubPlace(NAME), endpoint=hub.url)
    there = There(repository, repository.head())
    assert there.read("notes.txt", 1000) == bytes(1000)
    assert there.read("nothing.txt", 1000) is None
    fetched = hub.count("GET .*/notes.txt")
    with pytest.raises(CorruptState, match="larger than 999 bytes"):
        there.read("notes.txt", 999)
    assert hub.count("GET .*/notes.txt") == fetched


# -- one at a time -----------------------------------------------------------------------------------------------------


def test_an_earlier_tenure_publishes_nothing_after_a_later_one(shop: Shop, hub: HubStandIn, tmp_path: Path) -> None:
    Shop(tmp_path / "theirs", hub).publish(20, Tenure(3, B))
    with pytest.raises(Fenced, match="term 2 of a may not publish"):
        shop.publish(30, Tenure(2, A))
    assert epochs(hub) == [20]


def test_a_later_tenure_with_an_earlier_epoch_leaves_what_is_there(shop: Shop, hub: HubStandIn, tmp_path: Path) -> None:
    Shop(tmp_path / "theirs", hub).publish(20, Tenure(3, B))
    with pytest.raises(Fenced, match="epoch 20 of this run"):
        shop.publish(10, Tenure(4, A))
    assert shop.publish(30, Tenure(4, A)).is_new
    assert epochs(hub) == [20, 30]


@pytest.mark.parametrize("tenure", [Tenure(3, A), Tenure(4, B)])
def test_after_a_rollback_the_repository_goes_back_with_the_run(shop: Shop, hub: HubStandIn, tenure: Tenure) -> None:
    """Another history has begun at an earlier epoch: whoever holds the lease publishes it over what was left."""
    shop.publish(20, Tenure(3, A))
    begun = snapshot(10).after_rollback("mark")
    digest = pack(begun, fingerprint="f").manifest.digest
    wanted = order(10, tenure)
    published = replace(wanted.publication, digest=digest, lineage=begun.lineage)
    wanted = replace(wanted, publication=published)
    assert shop.hub.publish(shop.disk.publish(begun, wanted).path, wanted).is_new
    assert epochs(hub) == [20, 10]
    assert json.loads(hub.repositories[NAME].head.files["collab_state.json"])["era"] == "mark"


@pytest.mark.parametrize(("theirs", "expected"), [(Tenure(1, B), [20, 30]), (Tenure(9, B), [20])])
def test_two_that_commit_at_once_do_not_interleave_and_the_later_tenure_stays(
    shop: Shop, hub: HubStandIn, tmp_path: Path, theirs: Tenure, expected: list[int]
) -> None:
    """The other one commits between our look and our commit: ours is refused, and we look again."""
    path, wanted = shop.save(30, Tenure(5, A))
    rival = Shop(tmp_path / "theirs", hub)
    rival.root.mkdir()
    hub.repositories[NAME] = Repository()
    hub.fault("POST .*/commit/main", -1, meanwhile=lambda: rival.publish(20, theirs))
    try:
        shop.hub.publish(path, wanted)
    except Fenced:
        assert theirs > wanted.authority
    assert epochs(hub) == expected


@pytest.mark.parametrize("status", [409, 412])
def test_a_commit_that_comes_in_between_is_looked_at_and_the_upload_is_not_repeated(
    shop: Shop, hub: HubStandIn, status: int
) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    hub.fault("POST .*/commit/main", status)
    assert shop.hub.publish(path, wanted).is_new
    assert epochs(hub) == [10]
    sent = sum((path / name).stat().st_size for name in ("model.safetensors", "optimizer.safetensors"))
    assert hub.sent_bytes == sent


def test_a_repository_that_never_rests_is_tried_later(shop: Shop, hub: HubStandIn) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    hub.fault("POST .*/commit/main", 412, times=99)
    with pytest.raises(HubBusy, match="keep committing"):
        shop.hub.publish(path, wanted)


def test_a_lease_that_ends_during_the_upload_publishes_nothing(shop: Shop, hub: HubStandIn) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    with pytest.raises(Fenced, match="longer than our turn"):
        shop.hub.publish(path, replace(wanted, may_finish=lambda: False))
    assert epochs(hub) == []


def test_another_runs_repository_is_left_alone(shop: Shop, hub: HubStandIn, tmp_path: Path) -> None:
    other = Shop(tmp_path / "other", hub)
    other.disk = LocalPublisher(other.root, "another run", lambda: FILES, keep=3)
    other.publish(1, Tenure(1, B))
    with pytest.raises(HubDenied, match="belongs to the run with fingerprint another run"):
        shop.publish(10, Tenure(7, A))
    assert epochs(hub) == [1]


def test_a_repository_with_something_else_in_it_is_left_alone(shop: Shop, hub: HubStandIn) -> None:
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit("mine", {"README.md": b"", "weights.bin": b"precious"})
    with pytest.raises(HubDenied, match=r"weights\.bin"):
        shop.publish(10, Tenure(1, A))
    assert hub.repositories[NAME].head.title == "mine"


def test_a_checkpoint_with_a_file_that_nobody_could_have_back_is_not_published(shop: Shop, hub: HubStandIn) -> None:
    shop.disk = LocalPublisher(shop.disk.root, "f", lambda: {**FILES, "collab_mine.json": b"{}"}, keep=3)
    path, wanted = shop.save(10, Tenure(1, A))
    with pytest.raises(HubDenied, match=r"the task's file collab_mine\.json") as told:
        shop.hub.publish(path, wanted)
    assert "checkpoint_files() of the task" in told.value.hint
    assert "collab_state.json" not in hub.repositories[NAME].head.files


def test_a_state_file_that_somebody_has_changed_is_not_built_on(shop: Shop, hub: HubStandIn) -> None:
    shop.publish(10, Tenure(1, A))
    repository = hub.repositories[NAME]
    good = json.loads(repository.head.files["collab_state.json"])
    told, leased = good["metrics"]["published"], {"term": 1, "holder": "a"}
    odd = [{"term": term} for term in ("5", 5.0, True, -1, MAX_TERM + 1)] + [{"holder": 3}, {"holder": None}]
    published = [{**told, **one} for one in (*odd, {"digest": 3}, {"lineage": ["l"]})]
    fields: list[dict[str, Any]] = [
        {"metrics": []}, {"metrics": {"published": [1]}}, {"sha256": None}, {"sha256": {"model.safetensors": 3}},
        {"scalars": []}, {"hub": "x"}, {"hub": {"term": 1e999, "holder": "a"}}, {"lineage": 3}, {"era": None},
        {"fingerprint": 3}, *({"epoch": epoch} for epoch in (-1, 1.5, True, "3", 1e999, 2**60)),
        *({"metrics": {"published": one}} for one in published), *({"hub": {**leased, **one}} for one in odd),
    ]  # fmt: skip
    changed = [json.dumps({**good, **one}).encode() for one in fields]
    without = [json.dumps({k: v for k, v in good.items() if k != key}).encode() for key in ("sha256", "lineage")]
    for content in (b"{", b"[]", b'{"epoch": 3}', *changed, *without):
        repository.commit("oops", repository.head.files | {"collab_state.json": content})
        with pytest.raises(HubDenied, match="not what a backbone writes") as told:
            shop.publish(20, Tenure(1, A))
        assert "take the repository back to an earlier commit" in told.value.hint


def test_a_state_file_that_is_too_large_is_not_fetched(
    shop: Shop, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.publish(10, Tenure(1, A))
    monkeypatch.setattr("collab.checkpoints.hub_publisher.MOST_STATE_BYTES", 200)
    hub.requests.clear()
    with pytest.raises(HubDenied, match=r"collab_state\.json of org/model is larger than 200 bytes"):
        shop.publish(20, Tenure(1, A))
    assert hub.count("GET .*/collab_state.json") == 0


# -- what the Hub and the network do -----------------------------------------------------------------------------------

LARGE, COMMIT, LOOK = "PUT /large/.*", "POST .*/commit/main", "GET /api/models/.*"


@pytest.mark.parametrize("request_kind", [LARGE, COMMIT, LOOK, "POST .*/preupload/main", "POST .*/objects/batch"])
@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_a_server_in_trouble_is_said_at_once_and_the_next_attempt_publishes(
    shop: Shop, hub: HubStandIn, request_kind: str, status: int
) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    hub.repositories[NAME] = Repository()
    hub.fault(request_kind, status, headers={"Retry-After": "7"} if status else {})
    with pytest.raises(HubBusy) as told:
        shop.hub.publish(path, wanted)
    assert told.value.retry_after_s == (7.0 if status else 0.0)
    assert epochs(hub) == []
    assert hub.count(request_kind) == 1, "the client tries nothing again by itself"
    assert shop.hub.publish(path, wanted).is_new
    assert epochs(hub) == [10]


def test_a_server_that_takes_a_request_and_says_nothing_is_given_up(
    shop: Shop, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the look with which everything begins, for which the client has no limit of its own."""
    path, wanted = shop.save(10, Tenure(1, A))
    is_over = threading.Event()

    def say_nothing() -> None:
        is_over.wait(60.0)

    hub.fault(LOOK, -1, meanwhile=say_nothing)
    monkeypatch.setattr("collab.checkpoints.hub_repository.LOOK_S", 0.1)
    try:
        with pytest.raises(HubBusy, match="could not be reached: ReadTimeout") as told:
            shop.hub.publish(path, wanted)
    finally:
        is_over.set()
    assert told.value.silent_s >= 0.1


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({"RateLimit": '"api";r=0;t=55'}, 55.0),
        ({"ratelimit": '"api"; r = 0 ; t = 55', "RateLimit-Policy": '"fixed window";"api";q=500;w=300'}, 55.0),
        ({"RateLimit": '"pages";r=17;t=290, "api";r=0;t=55'}, 55.0),
        ({"RateLimit": '"api";r=0;t=55', "Retry-After": "7"}, 55.0),
        ({"RateLimit": '"api";r=0;t=5', "Retry-After": "7"}, 7.0),
        ({"RateLimit": '"api";r=0;t=999999'}, 3600.0),
        ({"Retry-After": "Thu, 01 Jan 2026 10:01:30 GMT", "Date": "Thu, 01 Jan 2026 10:00:00 GMT"}, 90.0),
        ({"Retry-After": "Thu, 01 Jan 2026 09:00:00 GMT", "Date": "Thu, 01 Jan 2026 10:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, 0.0),
        ({"Retry-After": "²"}, 0.0),
        ({"Retry-After": "-5", "RateLimit": "nonsense"}, 0.0),
    ],
)
def test_a_server_names_the_wait_in_any_of_its_ways(
    shop: Shop, hub: HubStandIn, headers: dict[str, str], expected_s: float
) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    hub.fault(LOOK, 429, headers=headers)
    with pytest.raises(HubBusy) as told:
        shop.hub.publish(path, wanted)
    assert told.value.retry_after_s == expected_s


@pytest.mark.parametrize("status", [0, 500, 503])
def test_a_commit_of_which_nobody_hears_is_found_at_the_next_attempt(shop: Shop, hub: HubStandIn, status: int) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    hub.fault(COMMIT, status, after=True)
    with pytest.raises(HubBusy):
        shop.hub.publish(path, wanted)
    assert not shop.hub.publish(path, wanted).is_new
    assert epochs(hub) == [10]


def test_after_a_cut_only_what_is_missing_is_sent(shop: Shop, hub: HubStandIn, tmp_path: Path) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    hub.fault(COMMIT, 0)
    with pytest.raises(HubBusy):
        shop.hub.publish(path, wanted)
    sent = hub.sent_bytes
    assert sent > 0
    assert Shop(tmp_path / "ours", hub).hub.publish(path, wanted).is_new, "also in the next life"
    assert hub.sent_bytes == sent


@pytest.mark.parametrize(
    ("request_kind", "status", "said"),
    [
        (COMMIT, 401, "missing, wrong or has expired"),
        (COMMIT, 403, "may not do that"),
        (LOOK, 401, "may not see it|missing, wrong"),
        ("POST .*/preupload/main", 403, "may not do that"),
        ("POST .*/objects/batch", 403, "may not do that"),
    ],
)
def test_a_refusal_says_what_to_do(shop: Shop, hub: HubStandIn, request_kind: str, status: int, said: str) -> None:
    hub.repositories[NAME] = Repository()
    hub.fault(request_kind, status, times=99)
    with pytest.raises(HubDenied, match=said) as told:
        shop.publish(10, Tenure(1, A))
    assert "hf auth login" in told.value.hint
    assert epochs(hub) == []


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (400, "malformed", "an upgrade"),
        (402, "no money", "to pay for"),
        (413, "too much", "nothing so large"),
        (422, "malformed", "an upgrade"),
        (403, "Private repository storage limit reached, please upgrade your plan", "--hub-every"),
        (413, "the storage of this account is full", "keeps a whole checkpoint"),
    ],
)
def test_what_the_hub_will_not_take_is_told_with_what_it_says_and_what_to_do(
    shop: Shop, hub: HubStandIn, status: int, message: str, hint: str
) -> None:
    hub.repositories[NAME] = Repository()
    hub.fault(COMMIT, status, message=message)
    with pytest.raises(HubDenied, match=f"answered {status}: {message}") as told:
        shop.publish(10, Tenure(1, A))
    assert hint in told.value.hint
    assert epochs(hub) == []


def test_without_a_token_the_message_says_how_to_get_one(
    shop: Shop, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: None)
    with pytest.raises(HubDenied) as told:
        shop.publish(10, Tenure(1, A))
    assert "write access" in told.value.hint


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("HF_TOKEN", "the token in HF_TOKEN is what counts here, and 'hf auth login' changes nothing while it is set"),
        ("HUGGING_FACE_HUB_TOKEN", "the token in HUGGING_FACE_HUB_TOKEN is what counts here"),
        ("", "then run 'hf auth login' on this machine: it is used within a quarter of an hour"),
    ],
)
def test_who_has_a_token_in_a_variable_is_not_told_to_log_in(
    shop: Shop, hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, advice: str
) -> None:
    (tmp_path / "token").write_text("hf_" + "expired")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN")
    if variable:
        monkeypatch.setenv(variable, "hf_" + "expired")
    hub.repositories[NAME] = Repository()
    with pytest.raises(HubDenied, match="missing, wrong or has expired") as told:
        shop.publish(10, Tenure(1, A))
    assert advice in told.value.hint


def test_a_machine_that_is_set_to_work_offline_says_so(
    shop: Shop, hub: HubStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubDenied, match="offline") as told:
        shop.publish(10, Tenure(1, A))
    assert "HF_HUB_OFFLINE" in told.value.hint


def test_a_server_that_repeats_our_token_does_not_get_it_into_a_message(shop: Shop, hub: HubStandIn) -> None:
    hub.repositories[NAME] = Repository()
    hub.fault(COMMIT, 403, message=f"Bearer {TOKEN} may not write")
    with pytest.raises(HubDenied) as told:
        shop.publish(10, Tenure(1, A))
    assert TOKEN not in str(told.value)
    assert "may not write" in str(told.value)


# -- our own disk ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_is_deleted_while_it_is_sent_is_published_whole(shop: Shop, hub: HubStandIn) -> None:
    path, wanted = shop.save(10, Tenure(1, A))

    def delete() -> None:
        import shutil

        shutil.rmtree(path)

    hub.fault("POST .*/preupload/main", -1, meanwhile=delete)
    assert shop.hub.publish(path, wanted).is_new
    assert epochs(hub) == [10]


def test_a_file_of_ours_that_cannot_be_read_is_not_told_as_the_hubs_fault(shop: Shop, hub: HubStandIn) -> None:
    """The client wraps what the system says of it."""
    path, wanted = shop.save(10, Tenure(1, A))
    hub.fault("POST .*/objects/batch", -1, meanwhile=(shop.root / "outbox" / path.name / "model.safetensors").unlink)
    with pytest.raises(CheckpointFailed, match=r"outbox.*model\.safetensors could not be read"):
        shop.hub.publish(path, wanted)
    assert epochs(hub) == []
    assert shop.hub.publish(path, wanted).is_new


@pytest.mark.parametrize("damage", [lambda path: (path / "model.safetensors").write_bytes(b"torn"),
                                    lambda path: (path / "collab_state.json").unlink()])  # fmt: skip
def test_a_damaged_checkpoint_is_not_published(shop: Shop, hub: HubStandIn, damage: Callable[[Path], None]) -> None:
    path, wanted = shop.save(10, Tenure(1, A))
    damage(path)
    with pytest.raises(CheckpointFailed):
        shop.hub.publish(path, wanted)
    assert hub.repositories.get(NAME) is None or epochs(hub) == []


@pytest.mark.parametrize("text", ["model", "a/b/c", "../x", "org/model@", "https://org/x", "org/ m", "org/m@main x"])
def test_what_is_no_name_of_a_repository_is_none(text: str) -> None:
    assert HubPlace.parse(text) is None
    with pytest.raises(ConfigError):
        HubPlace.named(text)


def test_a_repository_can_be_named_with_a_revision() -> None:
    assert HubPlace.parse("org/model@v1.0") == HubPlace("org/model", "v1.0")
    assert str(HubPlace("org/model", "v1.0")) == "org/model@v1.0"
    with pytest.raises(ConfigError):
        HubPlace.named("org/model@v1.0")


def test_how_much_has_left_for_the_hub_is_told_by_bytes_and_what_is_there_already_counts_at_once(
    shop: Shop, hub: HubStandIn
) -> None:
    told: list[tuple[int, int]] = []
    repository = HubRepository(HubPlace(NAME), endpoint=hub.url, tell=lambda *so_far: told.append(so_far))
    repository.create()
    files: dict[str, Path | bytes] = {"a.safetensors": shop.root / "a", "b.safetensors": bytes(300_000)}
    shop.root.mkdir()
    (shop.root / "a").write_bytes(bytes(range(250)) * 4000)
    change = Change(title="one", files={**files, "README.md": b"small"})
    repository.send(change)
    done, whole = [one for one, _ in told], {all_of_it for _, all_of_it in told}
    assert whole == {1_300_000}
    assert done == sorted(done)
    assert {1_000_000, 1_300_000} <= set(done)
    assert len([one for one in done if one < 1_000_000]) >= 10, "a file is told of while it is sent"
    told.clear()
    sent = hub.sent_bytes
    repository.send(change)
    assert hub.sent_bytes == sent
    assert told == [(1_000_000, 1_300_000), (1_300_000, 1_300_000)]
