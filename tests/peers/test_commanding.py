"""What an organiser's commands leave behind, with no backbone there to hear them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import yaml

from collab.checkpoints.local import prune
from collab.checkpoints.local_publisher import LocalPublisher
from collab.errors import BootstrapFailed, ConfigError
from collab.net.startup import Started, StartupSettings
from collab.ports import Observer
from collab.swarm.identity import load_or_create_identity
from collab.swarm.mandate import Mandate
from collab.swarm.order_exchange import read_orders, write_orders
from collab.swarm.orders import MAX_ORDERS
from collab.swarm.statements import Amend, Ban, Pardon, Rollback
from collab.types import Role
from collab.version import VERSION
from peers import commanding, owner
from peers.commanding import ban, pardon, rollback
from peers.inviting import invite, list_invites, revoke
from peers.organising import init_run
from peers.owner import Estate
from peers.places import INVITES, ORDERS, RUN_FILE, DataDir
from peers.served import note_served
from peers.status import _look_as_owner
from tests.checkpoints.test_local import snapshot
from tests.swarm.people import PEOPLE


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a run with checkpoints of epochs 5, 10 and 15; no backbone answers."""
    directory = tmp_path / "run"
    init_run(directory, "a-run")
    estate = Estate.at(directory)
    publisher = LocalPublisher(directory / "backbone" / "checkpoints", estate.bundle.fingerprint, dict, keep=10)
    for epoch in (5, 10, 15):
        publisher.keep(snapshot(epoch), "d" * 64, 1.0)

    @asynccontextmanager
    async def nobody_answers(settings: StartupSettings, observer: Observer) -> AsyncIterator[Started]:
        async with asyncio.TaskGroup():  # as the tasks of a transport are in one
            raise BootstrapFailed("none of the addresses answered")
        yield

    monkeypatch.setattr(owner, "start_peer", nobody_answers)
    (directory / "backbone" / "addresses.json").write_text('["/ip4/127.0.0.1/tcp/1/p2p/x"]')
    return directory


def ordered(directory: Path) -> Mandate:
    mandate = Mandate(Estate.at(directory).bundle)
    mandate.take(0, read_orders(directory / ORDERS))
    return mandate


def test_the_checkpoint_that_was_named_is_there_when_the_backbone_hears_of_it(run_directory: Path) -> None:
    """It goes on training, and deletes what is too many, until then."""
    root = run_directory / "backbone" / "checkpoints"
    asyncio.run(rollback(run_directory, 5))
    prune(root, keep=1)
    assert not (root / "epoch-00000005").exists()
    mandate = ordered(run_directory)
    order = mandate.book.rollback()
    assert order is not None
    assert isinstance(order.what, Rollback)
    publisher = LocalPublisher(root, Estate.at(run_directory).bundle.fingerprint, dict, keep=1)
    begun = publisher.begin_again(order.what, order.mark)
    assert begun is not None
    assert (begun.epoch, begun.era) == (5, mandate.era)


def test_an_order_about_a_checkpoint_that_is_not_whole_is_never_given(run_directory: Path) -> None:
    (run_directory / "backbone" / "checkpoints" / "epoch-00000010" / "optimizer.safetensors").unlink()
    with pytest.raises(ConfigError, match="is not whole") as refused:
        asyncio.run(rollback(run_directory, 10))
    assert "there were: 5, 10, 15" in str(refused.value.hint)
    assert ordered(run_directory).book.orders == ()
    with pytest.raises(ConfigError, match="no checkpoint of epoch 7") as refused:
        asyncio.run(rollback(run_directory, 7))
    assert ordered(run_directory).book.orders == ()


def test_a_rollback_can_be_taken_back(run_directory: Path) -> None:
    """The checkpoints that it set aside can be gone back to as those of the present history can."""
    root = run_directory / "backbone" / "checkpoints"
    publisher = LocalPublisher(root, Estate.at(run_directory).bundle.fingerprint, dict, keep=10)
    for epoch in (5, 15):
        asyncio.run(rollback(run_directory, epoch))
        order = ordered(run_directory).book.rollback()
        assert order is not None
        assert isinstance(order.what, Rollback)
        begun = publisher.begin_again(order.what, order.mark)
        assert begun is not None
        assert begun.epoch == epoch
        publisher.keep(begun, "d" * 64, 1.0)


def test_a_second_thought_before_any_backbone_has_heard_counts(run_directory: Path) -> None:
    root = run_directory / "backbone" / "checkpoints"
    asyncio.run(rollback(run_directory, 5))
    asyncio.run(rollback(run_directory, 10))
    order = ordered(run_directory).book.rollback()
    assert order is not None
    assert isinstance(order.what, Rollback)
    begun = LocalPublisher(root, Estate.at(run_directory).bundle.fingerprint, dict, keep=1).begin_again(
        order.what, order.mark
    )
    assert begun is not None
    assert begun.epoch == 10


def test_amendments_that_stay_void_when_a_rollback_is_taken_back_are_named(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = run_directory / "backbone" / "checkpoints"
    estate = Estate.at(run_directory)
    publisher = LocalPublisher(root, estate.bundle.fingerprint, dict, keep=10)
    asyncio.run(commanding.amend(run_directory, commanding.Change(learning_rate=0.5), 12))
    asyncio.run(rollback(run_directory, 5))
    assert "; void: from epoch 12 on learning rate 0.5" in "".join(capsys.readouterr())
    order = ordered(run_directory).book.rollback()
    assert order is not None
    assert isinstance(order.what, Rollback)
    publisher.begin_again(order.what, order.mark)
    asyncio.run(rollback(run_directory, 15))
    assert "still void since the last rollback: from epoch 12 on learning rate 0.5" in "".join(capsys.readouterr())
    assert ordered(run_directory).book.terms_at(15).learning_rate is None


def test_where_each_push_is_a_step_no_batch_can_be_ordered(run_directory: Path) -> None:
    path = run_directory / RUN_FILE
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"strategy": {"name": "vc_asgd"}}))
    change = commanding.Change(learning_rate=0.5, target_batch_size=64)
    with pytest.raises(ConfigError, match=r"--target-batch: .* vc_asgd") as refused:
        asyncio.run(commanding.amend(run_directory, change, 12))
    assert "--learning-rate" in str(refused.value.hint)
    assert ordered(run_directory).book.orders == ()
    asyncio.run(commanding.amend(run_directory, commanding.Change(learning_rate=0.5), 12))
    assert len(ordered(run_directory).book.orders) == 1


def test_a_ban_says_what_the_banned_was_called_and_a_pardon_finds_it_by_that(run_directory: Path) -> None:
    invite(run_directory, "Bob", devices=1, days=1.0, role=Role.TRAINER)
    asyncio.run(ban(run_directory, "Bob", reason="noise", days=None))
    (order,) = ordered(run_directory).book.orders
    assert isinstance(order.what, Ban)
    assert order.what.name == "Bob"
    (run_directory / INVITES).unlink()  # the owner goes on from another copy of the directory
    asyncio.run(pardon(run_directory, "Bob"))
    assert ordered(run_directory).book.bans() == {}


def test_an_invite_that_is_revoked_is_told_of_to_programs_as_json(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, row = invite(run_directory, "Bob", devices=1, days=1.0, role=Role.TRAINER)
    asyncio.run(revoke(run_directory, "Bob", "", as_json=True))
    assert json.loads(capsys.readouterr().out) == {"revoked": [row.id], "is_known": False}
    assert ordered(run_directory).book.bans()[row.id].name == "Bob"


def test_who_is_banned_and_gone_is_pardoned_by_a_part_of_its_id(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = PEOPLE[3].peer_id
    asyncio.run(ban(run_directory, gone, reason="noise", days=1.0))
    asyncio.run(pardon(run_directory, gone[-8:]))
    assert ordered(run_directory).book.bans() == {}
    assert f"({gone}) may take part again" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="nobody is meant") as refused:
        asyncio.run(pardon(run_directory, gone))
    assert "who is banned: nobody" in refused.value.hint


@pytest.mark.parametrize("text", ["a name of more than forty characters, which no id is", "collab2-" + "A" * 300])
def test_nobody_is_banned_by_what_is_no_id(run_directory: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        asyncio.run(ban(run_directory, text, reason="noise", days=None))
    assert ordered(run_directory).book.orders == ()


@pytest.mark.parametrize("days", [9_999_999.0, float("inf")])
def test_a_ban_ends_in_somebody_s_life_or_never(run_directory: Path, days: float) -> None:
    with pytest.raises(ConfigError, match="36500 at most") as refused:
        asyncio.run(ban(run_directory, PEOPLE[3].peer_id, reason="noise", days=days))
    assert "without --days" in refused.value.hint
    assert ordered(run_directory).book.orders == ()


def test_a_long_reason_leaves_room_for_the_name(run_directory: Path) -> None:
    """In any of the alphabets whose letters take two bytes."""
    invite(run_directory, "я" * 40, devices=1, days=1.0, role=Role.TRAINER)
    asyncio.run(ban(run_directory, "я" * 40, reason="я" * 200, days=None))
    assert len(ordered(run_directory).book.bans()) == 1


def test_a_reason_that_does_not_fit_is_refused_with_what_to_do(run_directory: Path) -> None:
    """In an alphabet whose letters take three bytes."""
    invite(run_directory, "あ" * 40, devices=1, days=1.0, role=Role.TRAINER)
    with pytest.raises(ConfigError, match="768 bytes are the most") as refused:
        asyncio.run(ban(run_directory, "あ" * 40, reason="あ" * 180, days=None))
    over_bytes = int(re.findall(r"shorten --reason by (\d+) bytes", refused.value.hint)[0])
    assert ordered(run_directory).book.orders == ()
    asyncio.run(ban(run_directory, "あ" * 40, reason="あ" * (180 - -(-over_bytes // 3)), days=None))
    assert len(ordered(run_directory).book.bans()) == 1


def test_that_orders_run_out_is_said_in_time_and_with_what_to_do(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estate = Estate.at(run_directory)
    book = ordered(run_directory).book

    def give_until(number: int) -> None:
        nonlocal book
        while len(book.orders) < number:
            book = book.extended([book.signed(Pardon(who="x"), estate.owner, 1.0)])
        write_orders(run_directory / ORDERS, book)

    change = commanding.Change(learning_rate=0.5)
    give_until(898)
    asyncio.run(commanding.amend(run_directory, change, 12))
    assert "can have" not in capsys.readouterr().err
    asyncio.run(commanding.amend(run_directory, change, 13))
    assert "this run has had 900 orders; it can have 1000\n  -> " in capsys.readouterr().err
    book = ordered(run_directory).book
    give_until(MAX_ORDERS)
    with pytest.raises(ConfigError, match="can have no more") as refused:
        asyncio.run(commanding.amend(run_directory, change, 14))
    assert "--new-owner" in refused.value.hint


@pytest.mark.parametrize(("version", "said"), [("2.0", "this machine has"), ("soon", "is no version")])
def test_nobody_orders_a_version_that_its_own_machine_has_not(run_directory: Path, version: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        asyncio.run(commanding.amend(run_directory, commanding.Change(minimum_version=version), 12))
    assert ordered(run_directory).book.orders == ()


@pytest.mark.parametrize("at_epoch", [None, 8])
@pytest.mark.parametrize("seen_epoch", [5, 8, 9])
def test_a_version_that_was_too_high_is_lowered_from_its_own_epoch_on(
    run_directory: Path, at_epoch: int | None, seen_epoch: int
) -> None:
    """The trainers have stopped there, or will, and would never reach a later one."""
    place, book = DataDir(run_directory / "backbone"), ordered(run_directory).book
    place.last_seen.write_text(json.dumps({"epoch": seen_epoch}))
    packed = book.signed(Amend(from_epoch=8, minimum_version="99.0"), Estate.at(run_directory).owner, 1.0)
    write_orders(run_directory / ORDERS, book.extended([packed]))
    assert ordered(run_directory).needed_version(8) == "99.0"
    asyncio.run(commanding.amend(run_directory, commanding.Change(minimum_version="0.0.1"), at_epoch))
    assert ordered(run_directory).needed_version(8) is None
    assert ordered(run_directory).needed_version(20) is None
    # what was corrected lowers nothing any more, and what changes the step keeps its notice
    for change in (commanding.Change(minimum_version=VERSION), commanding.Change(learning_rate=0.5)):
        with pytest.raises(ConfigError, match="has reached epoch"):
            asyncio.run(commanding.amend(run_directory, change, 5))
        asyncio.run(commanding.amend(run_directory, change, None))
        assert ordered(run_directory).book.amendments()[-1].from_epoch == seen_epoch + 10


@contextmanager
def edited(run_directory: Path) -> Iterator[None]:
    """While its backbone serves it as it was, the run file is another one."""
    note_served(DataDir(run_directory / "backbone"), Estate.at(run_directory).bundle.fingerprint)
    path = run_directory / RUN_FILE
    before = path.read_text()
    path.write_text(yaml.safe_dump(yaml.safe_load(before) | {"seed": 1}))
    yield
    path.write_text(before)


def test_a_run_whose_file_is_edited_is_not_called_dead(
    run_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with edited(run_directory):
        for look in (_look_as_owner(run_directory), list_invites(run_directory, as_json=False)):
            with pytest.raises(ConfigError, match="is not the run that the backbone of this directory serves") as told:
                asyncio.run(look)
            assert told.value.hint.startswith("change it back")
    assert capsys.readouterr().out == ""


def test_an_order_for_a_run_that_nobody_has_is_not_given(run_directory: Path) -> None:
    gone = PEOPLE[3].peer_id
    invite(run_directory, "Bob", devices=1, days=1.0, role=Role.TRAINER)
    asyncio.run(ban(run_directory, "Bob", reason="noise", days=None))
    before = {name: (run_directory / name).read_bytes() for name in (ORDERS, INVITES)}
    with edited(run_directory):
        for order in (
            ban(run_directory, gone, reason="noise", days=None),
            pardon(run_directory, "Bob"),
            rollback(run_directory, 5),
            commanding.amend(run_directory, commanding.Change(learning_rate=0.5), 12),
            commanding.end(run_directory, 20),
            revoke(run_directory, "Bob", "", as_json=False),
        ):
            with pytest.raises(ConfigError, match="is not the run that the backbone of this directory serves") as told:
                asyncio.run(order)
            assert told.value.hint.startswith("change it back")
        with pytest.raises(ConfigError, match="is not the run that the backbone"):
            invite(run_directory, "Carl", devices=1, days=1.0, role=Role.TRAINER)
    assert {name: (run_directory / name).read_bytes() for name in (ORDERS, INVITES)} == before
    asyncio.run(ban(run_directory, gone, reason="noise", days=None))
    assert gone in ordered(run_directory).book.bans()
    assert len(ordered(run_directory).book.bans()) == 2


def test_who_looks_while_the_run_file_is_another_one_moves_no_orders(run_directory: Path) -> None:
    """It is edited, the backbone does not start, and it is restored."""
    invite(run_directory, "Bob", devices=1, days=1.0, role=Role.TRAINER)
    asyncio.run(ban(run_directory, "Bob", reason="noise", days=None))
    path = run_directory / RUN_FILE
    before = path.read_text()
    path.write_text(yaml.safe_dump(yaml.safe_load(before) | {"seed": 1}))
    asyncio.run(list_invites(run_directory, as_json=True))
    path.write_text(before)
    assert len(ordered(run_directory).book.bans()) == 1


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_damaged_orders_are_put_aside_and_the_command_goes_on(
    run_directory: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    gone = PEOPLE[3].peer_id
    (run_directory / ORDERS).write_bytes(content)
    asyncio.run(ban(run_directory, gone, reason="noise", days=None))
    assert list(ordered(run_directory).book.bans()) == [gone]
    assert (run_directory / "orders.unusable-1").read_bytes() == content
    said = capsys.readouterr().err
    assert "problem: the organiser's orders in" in said
    assert "orders.unusable-1" in said


def test_who_is_named_in_a_whole_line_is_banned_pardoned_and_revoked_beside_a_torn_one(run_directory: Path) -> None:
    _, row = invite(run_directory, "Bob", devices=1, days=1.0, role=Role.TRAINER)
    with (run_directory / INVITES).open("a") as file:
        file.write('{"id": "12D3')
    asyncio.run(ban(run_directory, "Bob", reason="noise", days=None))
    asyncio.run(pardon(run_directory, "Bob"))
    assert ordered(run_directory).book.bans() == {}
    asyncio.run(revoke(run_directory, "Bob", "", as_json=False))
    assert list(ordered(run_directory).book.bans()) == [row.id]


def test_a_whole_id_needs_no_list_of_invites(run_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_directory / INVITES).mkdir()  # it cannot be read
    gone = PEOPLE[3].peer_id
    asyncio.run(ban(run_directory, gone, reason="noise", days=None))
    assert list(ordered(run_directory).book.bans()) == [gone]
    asyncio.run(pardon(run_directory, gone))
    assert ordered(run_directory).book.bans() == {}
    assert capsys.readouterr().err.count("problem: cannot read") == 2
    with pytest.raises(ConfigError, match="cannot read"):
        asyncio.run(ban(run_directory, "Bob", reason="noise", days=None))


def test_the_backbone_of_the_directory_is_not_banned(run_directory: Path) -> None:
    identity = run_directory / "backbone" / "identity.key"
    asyncio.run(ban(run_directory, PEOPLE[3].peer_id, reason="noise", days=None))
    assert not identity.exists(), "no key is made only to look at it"
    own = load_or_create_identity(identity).peer_id
    with pytest.raises(ConfigError, match="is the backbone of this directory"):
        asyncio.run(ban(run_directory, own, reason="a slip", days=None))
    assert len(ordered(run_directory).book.orders) == 1
