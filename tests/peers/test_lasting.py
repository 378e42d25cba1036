"""What of a peer outlives its machine, and that little is written where everything is kept for weeks."""

import asyncio
import shutil
from pathlib import Path

import pytest

from collab.errors import ConfigError
from peers import lasting
from peers.lasting import REST_S, Lasting, kept_in
from peers.places import LOCK, DataDir
from tests.live.processes import LIMIT_S

SMALL = {"identity.key": b"a key", "agreed.json": b"{}", "backbones.json": b"[1]", "traffic.json": b"1"}
FOR_THIS_MACHINE = ("metrics.jsonl", "state/copies/epoch-00000001/model.safetensors", "condition.json")


class Machine:
    """One, with its disk and its clock."""

    def __init__(self, disk: Path, folder: Path) -> None:
        self.now_s = 0.0
        disk.mkdir()
        self.place, self.folder = DataDir(disk), folder
        self.lasting = Lasting(folder, self.place, lambda: self.now_s)

    def write(self, **files: bytes) -> None:
        """As the peer does."""
        for name, data in files.items():
            (self.place.path / name.replace("_", ".")).write_bytes(data)

    def on_disk(self) -> dict[str, bytes]:
        return contents(self.place.path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name != LOCK}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "drive" / "my-run"
    path.mkdir(parents=True)
    return path


def test_the_next_machine_has_the_same_peer_and_nothing_large_was_kept(tmp_path: Path, folder: Path) -> None:
    first, second = Machine(tmp_path / "first", folder), Machine(tmp_path / "second", folder)
    for name, data in {**SMALL, **dict.fromkeys(FOR_THIS_MACHINE, b"much")}.items():
        (first.place.path / name).parent.mkdir(parents=True, exist_ok=True)
        (first.place.path / name).write_bytes(data)
    first.lasting.put()
    assert contents(folder) == SMALL
    assert not [path for path in folder.iterdir() if path.is_dir()]
    second.lasting.bring()
    assert second.on_disk() == SMALL
    assert {path.stat().st_mode & 0o077 for path in (*folder.iterdir(), second.place.identity)} == {0}


def test_a_new_file_is_kept_at_once_and_a_change_after_a_rest_or_at_the_end(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "here", folder)
    machine.lasting.bring()
    machine.write(traffic_json=b"0", identity_key=b"")
    machine.lasting.put()
    assert contents(folder) == {}, "the key is being written, and without it the rest is of nobody"
    machine.write(identity_key=b"a key")
    machine.lasting.put()
    machine.write(agreed_json=b"yes", traffic_json=b"1")
    machine.lasting.put()
    assert contents(folder) == {"identity.key": b"a key", "agreed.json": b"yes", "traffic.json": b"0"}
    machine.now_s = REST_S
    machine.lasting.put()
    assert contents(folder)["traffic.json"] == b"1"
    machine.write(traffic_json=b"2")
    machine.lasting.put()
    assert contents(folder)["traffic.json"] == b"1"
    machine.lasting.put(is_end=True)
    assert contents(folder)["traffic.json"] == b"2"


def test_what_does_not_change_is_not_written_again(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "here", folder)
    machine.write(identity_key=b"a key")
    machine.lasting.put()
    written = (folder / "identity.key").stat().st_ino
    machine.now_s = 2 * REST_S
    machine.lasting.put(is_end=True)
    assert (folder / "identity.key").stat().st_ino == written


def test_of_two_new_peers_in_one_folder_the_first_is_kept_and_the_second_says_so(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = Machine(tmp_path / "first", folder), Machine(tmp_path / "second", folder)
    first.lasting.bring()
    second.lasting.bring()
    first.write(identity_key=b"the first")
    second.write(identity_key=b"the second")
    first.lasting.put()
    second.lasting.put()
    second.lasting.put(is_end=True)
    assert contents(folder) == {"identity.key": b"the first"}
    assert capsys.readouterr().err.count(f"another machine keeps its peer in {folder}") == 1
    first.write(agreed_json=b"yes")
    first.lasting.put()
    assert contents(folder) == {"identity.key": b"the first", "agreed.json": b"yes"}


def test_of_two_machines_with_one_peer_the_later_writer_leaves_the_folder_alone(tmp_path: Path, folder: Path) -> None:
    for name, data in SMALL.items():
        (folder / name).write_bytes(data)
    first, second = Machine(tmp_path / "first", folder), Machine(tmp_path / "second", folder)
    for machine, used in ((first, b"10"), (second, b"20")):
        machine.lasting.bring()
        machine.write(traffic_json=used)
    first.lasting.put(is_end=True)
    second.lasting.put(is_end=True)
    assert contents(folder)["traffic.json"] == b"10"


def test_a_machine_goes_on_with_its_own_count_of_its_own_line(tmp_path: Path, folder: Path) -> None:
    for name, data in SMALL.items():
        (folder / name).write_bytes(data)
    machine = Machine(tmp_path / "here", folder)
    machine.write(identity_key=SMALL["identity.key"], traffic_json=b"99")  # it was killed before the folder had this
    machine.lasting.bring()
    assert machine.on_disk() == {**SMALL, "traffic.json": b"99"}
    machine.lasting.put()
    assert contents(folder)["traffic.json"] == b"99"


def test_a_machine_that_has_another_peer_loses_neither(tmp_path: Path, folder: Path) -> None:
    for name, data in SMALL.items():
        (folder / name).write_bytes(data)
    machine, new = Machine(tmp_path / "here", folder), Machine(tmp_path / "new", folder)
    machine.write(identity_key=b"of another peer", agreed_json=b"yes")

    async def live(machine: Machine) -> None:
        async with kept_in(folder, machine.place):
            pass

    with pytest.raises(ConfigError, match=f"{folder} keeps another peer than the one in {tmp_path / 'here'}") as told:
        asyncio.run(live(machine))
    assert "--data-dir" in told.value.hint
    assert machine.on_disk() == {"identity.key": b"of another peer", "agreed.json": b"yes"}
    assert contents(folder) == SMALL
    asyncio.run(live(new))
    assert new.on_disk() == SMALL


def test_without_its_key_what_is_kept_is_of_nobody_and_a_new_peer_takes_its_place(tmp_path: Path, folder: Path) -> None:
    for name in ("agreed.json", "backbones.json"):
        (folder / name).write_bytes(b"of before")
    (folder / "identity.key").touch()  # a Drive has the name before it has what is in it
    machine = Machine(tmp_path / "here", folder)
    machine.lasting.bring()
    assert machine.on_disk() == {}
    machine.write(identity_key=b"a key", agreed_json=b"yes")
    machine.lasting.put()
    assert contents(folder) == {"identity.key": b"a key", "agreed.json": b"yes", "backbones.json": b"of before"}


def test_a_drive_that_is_gone_costs_the_peer_nothing_and_is_tried_again(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(tmp_path / "here", folder)
    machine.write(identity_key=b"a key")
    shutil.rmtree(folder)
    for _ in range(2):
        machine.lasting.put()
    said = capsys.readouterr().err
    assert said.count("cannot be kept in") == 1
    assert "No such file or directory\n  -> mount it again" in said
    folder.mkdir()
    machine.lasting.put()
    assert contents(folder) == {}
    machine.now_s = REST_S
    machine.lasting.put()
    assert contents(folder) == {"identity.key": b"a key"}
    (folder / "identity.key").write_bytes(b"of another machine")
    machine.write(agreed_json=b"yes")
    machine.lasting.put()
    assert "another machine keeps its peer in" in capsys.readouterr().err, "which is something else"


def test_a_folder_that_cannot_be_read_ends_the_command_before_there_is_a_new_peer(tmp_path: Path, folder: Path) -> None:
    (folder / "identity.key").mkdir()
    with pytest.raises(ConfigError, match="cannot be taken from there: Is a directory") as refused:
        Machine(tmp_path / "here", folder).lasting.bring()
    assert "leave --keep out" in refused.value.hint


# -- as a peer has it --------------------------------------------------------------------------------------------------


def test_what_comes_while_a_peer_lives_is_kept_meanwhile_and_at_its_end(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lasting, "LOOK_S", 0.0)
    machine = Machine(tmp_path / "here", folder)

    async def live() -> None:
        async with kept_in(folder, machine.place), asyncio.timeout(LIMIT_S):
            machine.write(identity_key=b"a key")
            while not (folder / "identity.key").exists():
                await asyncio.sleep(0)
            machine.write(identity_key=b"a key", traffic_json=b"1")
            while not (folder / "traffic.json").exists():
                await asyncio.sleep(0)
            machine.write(traffic_json=b"2")
            raise ConfigError("it ends", hint="")

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(live())
    assert [error.message for error in caught.value.exceptions] == ["it ends"]
    assert contents(folder) == {"identity.key": b"a key", "traffic.json": b"2"}


def test_two_peers_of_one_machine_are_not_kept_in_one_folder(tmp_path: Path, folder: Path) -> None:
    first, second = Machine(tmp_path / "first", folder), Machine(tmp_path / "second", folder)

    async def live() -> None:
        async with kept_in(folder, first.place):
            with pytest.raises(ConfigError, match=f"another peer is kept in {folder}"):
                async with kept_in(folder, second.place):
                    pass
        async with kept_in(folder, second.place):
            pass

    asyncio.run(live())


def test_a_peer_that_is_kept_nowhere_leaves_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "here", tmp_path / "nowhere")
    machine.write(identity_key=b"a key")

    async def live() -> None:
        async with kept_in(None, machine.place):
            pass

    asyncio.run(live())
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
