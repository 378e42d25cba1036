"""What a backbone is told not to do: by names that there are, without contradiction, and others see it."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collab.config import parse_run
from collab.errors import BadMessage, ConfigError
from collab.ports import LinkLimits
from collab.swarm.duties import Duty, duties_in_words, read_duties
from collab.swarm.identity import load_or_create_identity
from collab.swarm.progress import SwarmView
from collab.swarm.records import MAX_WITHOUT_CHARACTERS, PeerRecord, pack_record, unpack_record
from collab.types import Lineage, PeerId, Role
from peers.cli import app
from peers.dashboard.words import doing
from peers.hosting import HostOptions, host, network_of
from peers.organising import init_run
from peers.places import DataDir
from peers.status import status_report, table
from peers.switched_off import Wishes, check_duties
from tests.peers.test_status import record

DEDLOC = "{run_id: abc, task: {name: image_classification}, strategy: {name: dedloc, target_batch_size: 64}}"
VC_ASGD = "{run_id: abc, task: {name: image_classification}, strategy: {name: vc_asgd}}"


def wishes(run: str = DEDLOC, **more: Any) -> Wishes:
    return Wishes(strategy=parse_run(run, origin="the test").strategy, **more)


def backbone(without: str) -> PeerRecord:
    return replace(record("b", role=Role.BACKBONE), without=without, era="", lineage=Lineage("l"))


def test_duties_are_read_by_name_and_told_in_one_order() -> None:
    assert read_duties(" metrics,relay, ") == {Duty.RELAY, Duty.METRICS}
    assert read_duties("") == frozenset()
    assert duties_in_words(read_duties("metrics,relay")) == "relay, metrics"


def test_a_name_that_is_no_duty_ends_in_a_list_of_those_that_are() -> None:
    with pytest.raises(ValueError, match="bootstrap, relay, reducer, state, checkpoints, metrics, parameters"):
        read_duties("relay,reducers")


@pytest.mark.parametrize("command", [("backbone", "run"), ("join", "word", "--role", "backbone")])
def test_the_command_line_names_what_there_is(command: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, [*command, "--without", "reducers"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert found.exit_code == 2
    assert "'reducers'" in found.output
    assert "parameters" in found.output


@pytest.mark.parametrize(
    ("off", "more", "words"),
    [
        ("bootstrap", {}, "--without bootstrap,relay"),
        ("parameters", {}, "a run with dedloc has no parameter store"),
        ("parameters", {"run": VC_ASGD, "store": "here"}, "--store names a place"),
        ("state", {"run": VC_ASGD, "store": "here"}, "hands out units of work"),
        ("checkpoints", {"run": VC_ASGD, "store": "here"}, "hands out units of work"),
        ("checkpoints", {"hub": "org/name"}, "add --hub-repo none"),
        ("state", {"hub": "org/name"}, "add --hub-repo none"),
        ("metrics", {"hub": "org/name"}, "add --hub-repo none"),
        ("checkpoints", {"begin_with": "org/name"}, "--from brings a checkpoint"),
        ("metrics", {"dashboard": "8470"}, "leave --dashboard out"),
        ("metrics", {"track": "wandb"}, "leave --track out"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(off: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as found:
        check_duties(read_duties(off), wishes(**more))
    assert words in str(found.value)


@pytest.mark.parametrize(
    ("off", "more"),
    [
        ("", {"hub": "org/name", "store": "here", "begin_with": "x", "dashboard": "8470", "track": "wandb"}),
        ("bootstrap,relay,reducer,state,checkpoints,metrics", {"dashboard": "none"}),
        ("parameters,state,checkpoints", {"run": VC_ASGD}),
        ("metrics,reducer", {"track": "auto"}),
    ],
)
def test_the_rest_goes_together(off: str, more: dict[str, Any]) -> None:
    check_duties(read_duties(off), wishes(**more))


def test_the_only_backbone_that_is_known_lets_peers_in(tmp_path: Path) -> None:
    init_run(tmp_path, "abc")
    off = frozenset({Duty.BOOTSTRAP, Duty.RELAY})
    options = HostOptions(directory=tmp_path, host="127.0.0.1", port=0, off=off)
    with pytest.raises(ConfigError, match="knows of no other one that could let peers in"):
        asyncio.run(host(options, asyncio.Event()))


def test_the_invite_of_everybody_is_written_nowhere_where_each_has_one(tmp_path: Path) -> None:
    init_run(tmp_path, "abc")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(run_file.read_text().replace("access: open", "access: invite_only"))
    options = HostOptions(directory=tmp_path, host="127.0.0.1", port=0, invite_file=tmp_path / "invite.txt")
    with pytest.raises(ConfigError, match="--invite-file is for an open run") as found:
        asyncio.run(host(options, asyncio.Event()))
    assert "collab-peer invite" in found.value.hint


def test_only_a_backbone_on_an_open_line_with_that_duty_relays(tmp_path: Path) -> None:
    options = HostOptions(directory=tmp_path, host="0.0.0.0", port=0)
    place = DataDir(tmp_path)
    assert network_of(options, place, 1000).relay is not None
    assert network_of(replace(options, off=frozenset({Duty.RELAY})), place, 1000).relay is None
    assert network_of(replace(options, host="127.0.0.1"), place, 1000).relay is None
    assert network_of(replace(options, limits=LinkLimits(up_bytes_per_s=1.0)), place, 1000).relay is None


def test_others_hear_of_it_and_ask_no_state_of_who_gives_none(tmp_path: Path) -> None:
    identity = load_or_create_identity(tmp_path / "key")
    said = replace(backbone("relay,state"), peer=identity.peer_id)
    heard = unpack_record(pack_record(said, identity), identity.peer_id)
    assert heard.without == "relay,state"
    assert not heard.does(Duty.STATE)
    assert heard.does(Duty.CHECKPOINTS)
    other = replace(backbone(""), peer=PeerId("other"))
    assert SwarmView((heard, other), 0.0).donors("", is_at_rest=False) == [other.peer]
    assert SwarmView((heard, other), 0.0).backbones(Duty.CHECKPOINTS) == [heard, other]


def test_an_endless_list_of_duties_is_refused(tmp_path: Path) -> None:
    identity = load_or_create_identity(tmp_path / "key")
    said = replace(backbone("x" * (MAX_WITHOUT_CHARACTERS + 1)), peer=identity.peer_id)
    with pytest.raises(BadMessage, match="duties"):
        unpack_record(pack_record(said, identity), identity.peer_id)


def test_status_and_dashboard_say_what_is_off_and_nothing_that_is_no_duty() -> None:
    hostile = replace(backbone("\x1b[31m,relay,<b>"), peer=PeerId("c"))
    view = SwarmView((record("a"), backbone("relay,metrics"), hostile), 1.0)
    report = status_report("r", view, {})
    assert [peer["without"] for peer in report["peers"]] == [[], ["relay", "metrics"], ["relay"]]
    assert "without relay, metrics" in table(report)
    assert "\x1b" not in table(report)
    assert doing(backbone("relay,metrics"), None, 0.0) == "keeps the run, without relay, metrics"
    assert doing(backbone(""), None, 0.0) == "keeps the run, averages"
