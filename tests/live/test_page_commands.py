"""The commands of all pages, run: against one run of this machine, forked from one process.

But for the transcript of docs/organise.md, which has a test of its own.

What a page leaves to its reader (``my-run``, ``INVITE``, ``WORD``, a port) is put in, and what a test needs is added:
where to listen, a directory, JSON. ``NOT_RUN`` has the others, each with the reason.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from collab.version import VERSION
from peers.checkup import Finding, Outcome
from peers.doctor import MARKS, for_people, for_programs
from tests.docs.commands import REFERENCE, ROOT, Typed, commands_of, pages
from tests.live.ports import own_port
from tests.live.processes import LiveSwarm, Peer, live_swarm, run_cli, wait_until
from tests.live.test_swarm_life import digits

EVERYBODY = "it is for all peers on this machine, those of other tests, too: with --data-dir it is run"
NOT_RUN = {
    "join org/name": "it needs the Hub: with a stand-in all trainers of tests/live/test_hub.py do",
    "status org/name": "it needs the Hub: with a stand-in in tests/live/test_hub.py",
    "tcp/4000 --hub-repo org/name": "it needs the Hub: with a stand-in in tests/live/test_organise.py",
    "--hub-repo org/name --hub-every 180": "it needs the Hub: with a stand-in in tests/live/test_hub.py",
    "backbone my-run --from org/name": "it needs the Hub: with a stand-in in tests/live/test_hub.py",
    "backbone my-run --from org/name@REVISION": "it needs the Hub: with a stand-in in tests/live/test_hub.py",
    "--from org/name --new-owner": "it needs the Hub: with a stand-in in tests/live/test_organise.py",
    "export org/name": "it needs the Hub: with a stand-in in tests/live/test_organise.py",
    "docs/swarms/homes.yaml --out": "a simulation of minutes: a shorter one in tests/peers/test_simulate.py",
    "docs/swarms/thousand.yaml --calculated": "minutes; homes that are calculated in tests/peers/test_simulate.py",
    "swarm.yaml --out": "a simulation of minutes: a shorter one in tests/peers/test_simulate.py",
    "plan swarm.yaml": "the reader's own swarm: it is run for docs/swarms/homes.yaml",
    "rollback my-run": "it needs a run of 1,100 steps: back to an earlier one in tests/live/test_loss_spike.py",
    "--when idle": "whether somebody types here is not the test's to say: tests/peers/test_occasions.py",
    "--gpu-memory 6": "it needs a GPU, and says so where there is none: tests/peers/test_priority.py",
    "pause": EVERYBODY,
    "resume": EVERYBODY,
}
"""What is in a command's line (after the program's name: at its end, or before a space), and why it is not run."""
PLAIN, PAUSED = ("join", "INVITE"), "plain"
"""One peer, which is asked to pause then; its name."""

SCARCE = {"memory", "disk"}
"""What the doctor may find a problem on a machine that runs tests; everything else has to be well."""


def problems_in(said: str) -> set[str]:
    """The checks in which the doctor has found something that must be mended; it ends with 1 if there is one."""
    if said.startswith("{"):
        return {one["check"] for one in json.loads(said)["checks"] if one["outcome"] == Outcome.PROBLEM}
    rows = [line.split() for line in said.splitlines()]
    return {row[1] for row in rows if row[:1] == [MARKS[Outcome.PROBLEM]]}


def reason(typed: Typed) -> str:
    """Why a command is not run; empty: it is."""
    return next((why for part, why in NOT_RUN.items() if is_about(part, typed)), "")


def is_about(part: str, typed: Typed) -> bool:
    """Whether a part of ``NOT_RUN`` is of this command."""
    line = " ".join(typed.arguments) + " "
    return f"{part} " in line and "pause --data-dir" not in line


def page_commands() -> Iterator[Typed]:
    """Each once."""
    seen = set()
    for page in pages():
        for typed in commands_of(page, REFERENCE if page.name == "organise.md" else ""):
            if typed.arguments not in seen:
                seen.add(typed.arguments)
                yield typed


COMMANDS = list(page_commands())


class Reader:
    """Who types what the pages say."""

    def __init__(self, swarm: LiveSwarm, root: Path) -> None:
        self.swarm, self.root = swarm, root
        self.word = root / "word.txt"
        self._number = 0
        self.run: list[Typed] = []

    def take(self, *first: str, without: str = " ") -> list[Typed]:
        """Commands that begin with these words and are to be run, and have not been."""
        wanted = [
            typed
            for typed in COMMANDS
            if typed.arguments[: len(first)] == first and not reason(typed) and typed not in self.run
            and without not in typed.arguments
        ]  # fmt: skip
        self.run += wanted
        return wanted

    def words(self, typed: Typed) -> list[str]:
        """A command's words, with what its reader puts in."""
        put_in = {
            "/var/lib/collab/my-run": str(self.root / "var-my-run"),
            "my-run": str(self.swarm.directory),
            "INVITE": str(self.swarm.invite),
            "invite.txt": str(self.swarm.invite),
            "DIRECTORY": str(self.root / f"export-{self._number}"),
            "WORD": str(self.word),
            "PEER_OR_PERSON": "Anna",
            "0.2.0": VERSION,
            "carried-on": str(self.root / "carried-on"),
            "DIR": str(self.root / PAUSED),
            "docs/swarms/homes.yaml": str(ROOT / "docs" / "swarms" / "homes.yaml"),
            "epoch-00001200": str(max(self.swarm.checkpoint(0).parent.glob("epoch-*"), default="")),
        }
        self._number += 1
        words = [put_in.get(word, word) for word in typed.arguments]
        for at, option in enumerate(words[:-1]):
            if option == "--port":
                words[at + 1] = own_port()
            elif option == "--data-dir" and words[at + 1] == "second":
                words[at + 1] = str(self.root / "second")
            elif option == "--dashboard" and words[at + 1] != "none":
                words[at + 1] = words[at + 1][: -len("8470")] + own_port()
        return words

    def start(self, typed: Typed, *added: str) -> Peer:
        """One that does not end by itself."""
        words = self.words(typed)
        name = PAUSED if typed.arguments == PLAIN else f"{words[0]}-{self._number}"
        if words[0] == "join" and "--data-dir" not in words:
            added = (*added, "--data-dir", str(self.root / name))
        return self.swarm.start(name, [*words, "--json", *added])

    def paused(self) -> list[Peer]:
        """Who is asked to pause."""
        return [peer for peer in self.swarm.peers if peer.name == PAUSED]

    def type(self, typed: Typed) -> str:
        """One that ends; what it says."""
        done = run_cli(*self.words(typed))
        found = problems_in(done.stdout) if typed.arguments[0] == "doctor" else set()
        assert found <= SCARCE, f"{typed.line}\n{done.stdout}"
        assert done.returncode == (1 if found else 0), f"{typed.line}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        if "--json" in typed.arguments:
            json.loads(done.stdout)
        return done.stdout + done.stderr


@pytest.mark.parametrize("shown", [for_people, for_programs])
def test_a_problem_that_the_doctor_finds_is_seen(shown: Callable[[Sequence[Finding]], str]) -> None:
    outcomes = {"memory": Outcome.PROBLEM, "clock": Outcome.NOTE, "libp2p": Outcome.PROBLEM, "ports": Outcome.OK}
    findings = [
        Finding(check=check, outcome=outcome, text="PROBLEM codecs", remedy="PROBLEM of another kind")
        for check, outcome in outcomes.items()
    ]
    assert problems_in(shown(findings)) == {"memory", "libp2p"}
    assert problems_in(shown(findings[1:2])) == set()


def test_each_reason_is_for_one_command_and_names_a_test_that_is_there() -> None:
    """One without a command is of long ago; one for several was thought of with one of them in mind."""
    for part, why in NOT_RUN.items():
        (typed,) = (typed for typed in COMMANDS if is_about(part, typed))
        told = [(ROOT / name).read_text(encoding="utf-8") for name in re.findall(r"tests/live/\w+\.py", why)]
        assert all(f'"{typed.arguments[0]}"' in text or "organise.md" in text for text in told), why
        assert all((ROOT / name).exists() for name in re.findall(r"tests/[\w/]+\.py", why)), why


def test_the_commands_of_the_pages_do_what_they_say(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100_000, every=5)) as swarm:
        reader = Reader(swarm, tmp_path)
        _organise(reader)
        for typed in (*reader.take("plan"), *reader.take("doctor", without="INVITE")):
            assert reader.type(typed)
        _serve(reader)
        _join(reader)
        _look_after(reader)
        assert {typed.line for typed in COMMANDS if not reason(typed)} == {typed.line for typed in reader.run}


def _organise(reader: Reader) -> None:
    """Runs are made; they then get a model that needs no minutes."""
    text = (reader.swarm.directory / "run.yaml").read_text()
    (reader.swarm.directory / "run.yaml").unlink()
    for typed in reader.take("init"):
        directory = Path(reader.words(typed)[1])
        reader.type(typed)
        assert (directory / "owner.key").exists()
        assert "run_id: " in (directory / "run.yaml").read_text()
        (directory / "run.yaml").write_text(text)


def _serve(reader: Reader) -> None:
    """Backbones one after the other, the plainest one last: it stays."""
    for typed in sorted(reader.take("backbone", without="carried-on"), key=lambda typed: -len(typed.arguments)):
        reader.swarm.invite.unlink(missing_ok=True)
        added = ("--host", "127.0.0.1", "--invite-file", str(reader.swarm.invite), "--track", "none")
        backbone = reader.start(typed, *added)
        wait_until(reader.swarm.invite.exists, f"the invite of {typed.line}", backbone)
        if "none" not in typed.arguments and "relay,metrics" not in typed.arguments:
            wait_until(lambda peer=backbone: bool(peer.all("DashboardServed")), "its dashboard", backbone)  # type: ignore[misc]
        if len(typed.arguments) > len(("backbone", "my-run", "--port", "4000")):
            backbone.leave()


def _join(reader: Reader) -> None:
    """Further backbones, then trainers and a helper; all but the plainest leave again, since they use all cores."""
    for number, typed in enumerate(reader.take("join", "WORD")):
        invited = run_cli("invite", str(reader.swarm.directory), "--name", f"copy-{number}", "--role", "backbone")
        assert invited.returncode == 0, invited.stderr
        reader.word.write_text(invited.stdout)
        peer = reader.start(typed, "--host", "127.0.0.1")
        wait_until(lambda peer=peer: _says(peer, "serving run"), typed.line, peer)  # type: ignore[misc]
        peer.leave()
    for typed in sorted(reader.take("join", "INVITE"), key=lambda typed: typed.arguments != PLAIN):
        peer = reader.start(typed)
        kind = "RoundEnded" if "auxiliary" in typed.arguments else "EpochFinished"
        wait_until(lambda peer=peer, kind=kind: peer.all(kind) or _has_paused(peer), typed.line, peer)  # type: ignore[misc]
        if typed.arguments != PLAIN:
            peer.kill()


def _has_paused(peer: Peer) -> bool:
    """By day, before it has joined."""
    return peer.log.read_text().splitlines()[-1:] == ["paused: it is not the time from 22:00 to 07:00"]


def _says(peer: Peer, text: str) -> bool:
    return any(text in told["text"] for told in peer.all("Notice"))


def _look_after(reader: Reader) -> None:
    """What the owner and a volunteer type meanwhile."""
    for command in ("status", "doctor", "invite", "ban", "pardon", "amend", "end", "export", "pause"):
        for typed in reader.take(command):
            assert reader.type(typed)
    exported = sorted(reader.root.glob("export-*"))
    assert len(exported) == 2
    assert all((place / "model.safetensors").exists() for place in exported)
    assert "gave" in reader.type(next(typed for typed in COMMANDS if typed.arguments[0] == "status"))
    (carrying_on,) = reader.take("backbone", "carried-on")
    (reader.root / "carried-on").mkdir()
    shutil.copy(reader.swarm.directory / "run.yaml", reader.root / "carried-on")
    new = reader.start(carrying_on, "--host", "127.0.0.1", "--track", "none", "--dashboard", "none")
    wait_until(lambda: _says(new, "serving run"), carrying_on.line, new)
    new.leave()
    wait_until(lambda: any(peer.all("Paused") for peer in reader.paused()), "the one that was to pause")
