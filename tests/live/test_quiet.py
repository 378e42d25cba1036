"""Backbones that were asked to speak of problems only, and of what matters in lines."""

import re
import signal
from pathlib import Path

from tests.live.processes import LIMIT_S, LiveSwarm, Peer, live_swarm, run_cli, wait_until
from tests.live.test_swarm_life import digits

PROBLEM = re.compile(r"problem: |WARNING|^  -> ")


def started(swarm: LiveSwarm, name: str, *words: str) -> Peer:
    """One that does not speak JSON, once it is seen in the swarm."""
    peer = swarm.start(name, [*words, "--host", "127.0.0.1"])
    wait_until(swarm.invite.exists, "the invite", peer)
    seen = "backbone" if words[0] == "backbone" else name
    wait_until(lambda: any(one["name"] == seen for one in swarm.status()["peers"]), f"{name} to be seen", peer)
    return peer


def said_by(peer: Peer) -> list[str]:
    """All that it told people until it has left, but for problems: a busy machine may have some."""
    peer.process.send_signal(signal.SIGINT)
    assert peer.process.wait(LIMIT_S) == 0, peer.tail()
    peer.close()
    return [line for line in (*peer.lines, *peer.log.read_text().splitlines()) if not PROBLEM.search(line)]


def test_quiet_backbones_say_only_that_they_leave_and_a_plain_one_what_it_does(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", digits(until=100_000, every=5)) as swarm:
        own = ("backbone", str(swarm.directory), "--invite-file", str(swarm.invite), "--dashboard", "0")
        first = started(swarm, "first", *own, "--track", "none", "--quiet")
        joined = []
        for name, style in (("second", "--quiet"), ("third", "--plain")):
            made = run_cli("invite", str(swarm.directory), "--name", name, "--role", "backbone")
            assert made.returncode == 0, made.stderr
            options = ("--role", "backbone", "--name", name, "--data-dir", str(tmp_path / name), style)
            joined.append(started(swarm, name, "join", made.stdout.strip(), *options, "--dashboard", "0"))
        second, third = joined
        leaving = ["leaving: finishing what is under way (again to leave at once)"]
        lines = said_by(third)
        assert any(line.endswith("serving run live-digits\n") for line in lines), lines
        assert any(line.startswith("checkpoints and metrics: ") for line in lines), lines
        assert said_by(second) == leaving
        assert said_by(first) == leaving
