"""What a person sees when something is wrong: one error with a next step, exit code 1, and no traceback."""

import os
import signal
import socket
from pathlib import Path

import pytest
import torch

import collab
from collab.errors import ConfigError, ShapeMismatch
from tests.live.ports import own_port
from tests.live.processes import LIMIT_S, live_swarm, pids_about, run_cli, wait_until

RUN = """\
run_id: live-wrong
until_epoch: {until}
task: {{name: image_classification, hidden_sizes: [8]}}
optimizer: {{name: sgd, learning_rate: {rate}}}
strategy: {{name: dedloc, target_batch_size: 800}}
checkpoints: {{every_epochs: 10}}
"""


def assert_refused(command: "list[str]", *words: str) -> None:
    """The command fails with all of ``words`` in its message, a next step, and no traceback."""
    result = run_cli(*command)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert "error: " in result.stderr
    assert "->" in result.stderr, "every error says what to do next"
    for word in words:
        assert word in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("learning_rat: 1", ("optimizer.learning_rat", "unknown field")),
        ("learning_rate: fast", ("optimizer.learning_rate", "fast")),
        ("learning_rate: -1", ("optimizer.learning_rate", "-1")),
    ],
)
def test_a_bad_run_file_names_the_field_and_what_it_holds(tmp_path: Path, line: str, words: tuple[str, ...]) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(until=10, rate=1).replace("learning_rate: 1", line))
    assert_refused(["backbone", str(tmp_path), "--host", "127.0.0.1"], str(tmp_path / "run.yaml"), *words)


def test_fewer_samples_than_units_of_work_are_told_where_the_run_is_made(tmp_path: Path) -> None:
    text = RUN.replace("dedloc, target_batch_size: 800", "vc_asgd, shards: 2000")
    (tmp_path / "run.yaml").write_text(text.format(until=10, rate=1))
    words = ("1500 samples cannot be cut into 2000 units of work", "strategy.shards of 1500 at most")
    assert_refused(["backbone", str(tmp_path), "--host", "127.0.0.1"], *words)


def test_init_writes_a_run_that_a_backbone_serves_and_never_overwrites_it(tmp_path: Path) -> None:
    directory = tmp_path / "my-run"
    assert run_cli("init", str(directory)).returncode == 0
    assert (directory / "owner.key").stat().st_mode & 0o777 == 0o600
    assert_refused(["init", str(directory)], "exists already")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    assert_refused(["backbone", str(tmp_path / "nothing"), "--host", "127.0.0.1"], "cannot read the run file", "init")


def test_invites_that_are_cut_changed_or_no_invites_are_refused(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=10, rate=0.1)) as swarm:
        backbone = swarm.backbone()
        invite = swarm.invite.read_text().strip()
        backbone.leave()
    middle = len(invite) // 2
    changed = invite[:middle] + ("A" if invite[middle] != "A" else "B") + invite[middle + 1 :]
    assert_refused(["join", invite[:-7]], "cut or garbled")
    assert_refused(["join", changed], "cut or garbled")
    assert_refused(["join", "hello"], "begins with")
    assert_refused(["status", changed, "--json"], "cut or garbled")


def test_a_dead_backbone_is_named_with_its_address_and_the_reason(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=10, rate=0.1)) as swarm:
        swarm.backbone().leave()
        data_dir = str(tmp_path / "peer")
        assert_refused(
            ["join", str(swarm.invite), "--data-dir", data_dir], "none of the 1 bootstrap", "connection refused"
        )


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(until=10, rate=0.1))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert_refused(["backbone", str(tmp_path), "--host", "127.0.0.1", "--port", port], port, "in use", "--port")


def test_an_address_that_this_machine_does_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN.format(until=10, rate=0.1))
    words = ("cannot listen on 203.0.113.7", "leave --host out", "--announce")
    assert_refused(["backbone", str(tmp_path), "--host", "203.0.113.7"], *words)


def test_a_run_that_is_carried_on_begins_with_what_it_was_told_also_when_its_first_start_failed(tmp_path: Path) -> None:
    text = RUN.format(until=10, rate=0.1)
    with live_swarm(tmp_path / "old", text) as old:
        old.backbone().leave()
        theirs = old.checkpoint(0)
    with live_swarm(tmp_path / "new", f"seed: 1\n{text}") as new:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            command = ["backbone", str(new.directory), "--host", "127.0.0.1", "--port", str(taken.getsockname()[1])]
            for _ in range(2):
                assert_refused([*command, "--from", str(theirs), "--new-owner"], "cannot listen on")
            assert (new.directory / "owner.key").exists()
        backbone = new.backbone()
        backbone.wait_to_say(f"it begins with {theirs}, as it was told before")
        backbone.leave()
        model = (new.checkpoint(0) / "model.safetensors").read_bytes()
        assert model == (theirs / "model.safetensors").read_bytes()
        new.backbone().leave()
        assert_refused([*command, "--from", str(theirs), "--new-owner"], "has an owner already", "leave out --from")


def test_a_backbone_starts_on_a_disk_that_takes_nothing_for_the_convenience_of_people(tmp_path: Path) -> None:
    """Its run's way in is more than the files by which commands find it, and curves."""
    kept = tmp_path / "run" / "backbone"
    for name in ("addresses.json", "metrics.sqlite"):
        (kept / name).mkdir(parents=True)
    with live_swarm(tmp_path / "run", RUN.format(until=10, rate=1)) as swarm:
        backbone = swarm.backbone()
        backbone.wait_to_say(f"cannot write {kept / 'addresses.json'}: Is a directory")
        backbone.wait_to_say("the record of metrics is kept in memory only")
    assert sorted(path.name for path in kept.glob(".addresses*")) == []


def test_a_backbone_and_its_owner_go_on_where_the_files_of_orders_are_damaged(tmp_path: Path) -> None:
    """As a power cut may leave them."""
    directory = tmp_path / "run"
    (directory / "backbone").mkdir(parents=True)
    places = (directory / "orders", directory / "backbone" / "orders")
    for place in places:
        place.write_bytes(b"")
    with live_swarm(directory, RUN.format(until=10, rate=1)) as swarm:
        backbone = swarm.backbone()

        def is_told() -> bool:
            told = [notice["text"] for notice in backbone.all("Notice")]
            return all(any(f"orders in {place} cannot be used" in text for text in told) for place in places)

        wait_until(is_told, "word of both files", backbone)
        looked = run_cli("status", str(directory), "--json")
        assert looked.returncode == 0, looked.stderr
        assert "problem: the organiser's orders in" in looked.stderr
        assert [place.read_bytes() for place in places] == [b"", b""], "who only looks moves nothing"
        ordered = run_cli("amend", str(directory), "--learning-rate", "0.5", "--at", "1000")
        assert "the swarm knows" in ordered.stderr
        for place in places:
            assert place.read_bytes()
            assert place.with_name("orders.unusable-1").read_bytes() == b""


def test_an_invite_to_a_run_file_that_was_changed_names_both_fingerprints(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=10, rate=0.1)) as swarm:
        place = ("--port", own_port())
        swarm.backbone(*place).leave()
        old = tmp_path / "old-invite"
        swarm.invite.rename(old)
        (swarm.directory / "run.yaml").write_text(RUN.format(until=10, rate=0.2))
        refused = run_cli("backbone", str(swarm.directory), "--host", "127.0.0.1", *place)
        assert refused.returncode == 1, "checkpoints of the other run are not continued by accident"
        assert "fingerprint" in refused.stderr
        (swarm.directory / "backbone" / "checkpoints").rename(tmp_path / "moved")
        swarm.backbone(*place)
        result = run_cli("join", str(old), "--data-dir", str(tmp_path / "peer"))
    assert result.returncode == 1
    assert "the invite is for the run with fingerprint" in result.stderr
    assert "with fingerprint" in result.stderr.partition("but ")[2]
    assert "Traceback" not in result.stderr


def test_a_peer_whose_clock_is_minutes_off_trains_with_the_others(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=100000, rate=0.1)) as swarm:
        swarm.backbone()
        peers = right, wrong = swarm.join("right"), swarm.join("wrong", "--clock-error-s", "-400")

        def has_shared_a_round() -> bool:
            return any(event["contributors"] == 2 for event in wrong.all("EpochFinished"))

        wait_until(has_shared_a_round, "a round with both", wrong)
        wait_until(
            lambda: {p["name"] for p in swarm.status()["peers"]} == {"backbone", "right", "wrong"}, "all to be seen"
        )
        wrong.wait_to_say("off by")
        for peer in peers:
            peer.leave()
        assert right.all("EpochFinished")


def test_a_peer_whose_libp2p_daemon_dies_says_so_and_ends(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=100000, rate=0.1)) as swarm:
        swarm.backbone()
        peer = swarm.join("peer")
        peer.wait_for_epoch(1)
        for pid in pids_about(swarm.directory / "peer" / "identity.key"):
            os.kill(pid, signal.SIGKILL)
        assert peer.process.wait(LIMIT_S) == 1
        said = "error: the libp2p daemon (p2pd) of this peer has died\n  -> start the peer again"
        assert said in peer.log.read_text()


def test_two_peers_in_one_data_directory_are_told_apart(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=100000, rate=0.1)) as swarm:
        swarm.backbone()
        first = swarm.join("first")
        wait_until(lambda: first.epoch >= 1, "the first peer to train", first, LIMIT_S)
        assert_refused(["join", str(swarm.invite), "--data-dir", str(swarm.directory / "first")], "another peer uses")
        first.leave()


def test_a_model_or_optimiser_that_is_not_the_runs_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=100000, rate=0.1)) as swarm:
        swarm.backbone()
        invite = swarm.invite.read_text()
        small = torch.nn.Sequential(torch.nn.Linear(64, 7), torch.nn.ReLU(), torch.nn.Linear(7, 10))
        with pytest.raises(ShapeMismatch, match=r"0\.weight has shape \(7, 64\) here, \(8, 64\) in the snapshot"):
            collab.join(small, None, invite)
        right = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
        with pytest.raises(ConfigError, match=r"lr of 0\.weight is 0\.5 here and 0\.1 in the run file"):
            collab.join(right, torch.optim.SGD(right.parameters(), lr=0.5), invite)
        with pytest.raises(ConfigError, match=r"the run trains with sgd \(SGD\), this is AdamW"):
            collab.join(right, torch.optim.AdamW(right.parameters()), invite)
        with collab.join(right, None, invite) as swarm_view:
            assert swarm_view.epoch == 0


def test_an_auxiliary_peer_that_nobody_can_dial_says_so_and_ends(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN.format(until=1000, rate=0.1)) as swarm:
        swarm.backbone()
        place = ["--data-dir", str(tmp_path / "run" / "helper")]
        command = ["join", str(swarm.invite), "--role", "auxiliary", "--reach", "client", *place]
        assert_refused(command, "must be able to dial it", "--port")


def test_a_reach_that_there_is_not_is_named_with_those_that_there_are() -> None:
    result = run_cli("join", "collab2-x", "--reach", "relayed")
    assert result.returncode == 2
    assert "auto, direct or client" in result.stderr
