"""The namespace lab: links that are what they say, and nothing left behind. Needs root, as CI has it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from netlab import Lab  # noqa: E402
from netlab_links import Link, parse_round_trips  # noqa: E402
from netlab_namespaces import LabFailed, clean, namespaces  # noqa: E402

from tests.live.processes import LIMIT_S, wait_until  # noqa: E402

RECEIVER = """\
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
connection, _ = server.accept()
began_s, received = time.monotonic(), 0
connection.sendall(b"1")  # nothing comes before the clock runs
while chunk := connection.recv(1 << 20):
    received += len(chunk)
print(received, time.monotonic() - began_s)
"""
SENDER = """\
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    assert connection.recv(1)
    print("connected", flush=True)
    if sys.argv[3:]:
        sys.stdin.readline()
    connection.sendall(bytes(int(sys.argv[2])))
"""
LISTENER = """\
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
time.sleep(60)
"""
DIALLER = """\
import socket, sys, time
print("dialling", flush=True)
seconds = []
for _ in range(20):
    began_s = time.monotonic()
    socket.create_connection((sys.argv[1], 5000)).close()
    seconds.append(time.monotonic() - began_s)
print(1e3 * min(seconds))
"""


def start(lab: Lab, index: int, program: str, *arguments: str) -> "subprocess.Popen[str]":
    """Run a program at a peer, and wait for its first line."""
    command = lab.command(index, [sys.executable, "-c", program, *arguments])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def answers(lab: Lab, index: int, other: int, limit_s: float = LIMIT_S) -> bool:
    """Whether a small message gets there and back in time."""
    receiver = start(lab, other, RECEIVER, lab.host(other))
    sender = lab.command(index, [sys.executable, "-c", SENDER, lab.host(other), "1"])
    try:
        return subprocess.run(sender, capture_output=True, timeout=limit_s).returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        receiver.kill()
        receiver.communicate()


def end(process: "subprocess.Popen[str]") -> str:
    """Wait for a program; the rest of its output."""
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    return output


def ours() -> list[str]:
    """Namespaces of this very process."""
    return [name for name in namespaces() if f"-{os.getpid()}-" in name]


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("50", Link(up_mbit_per_s=50, down_mbit_per_s=50)),
        ("20/100", Link(up_mbit_per_s=20, down_mbit_per_s=100)),
        ("2.5/10@15", Link(up_mbit_per_s=2.5, down_mbit_per_s=10, delay_ms=15)),
    ],
)
def test_a_link_is_read_as_it_is_written(text: str, link: Link) -> None:
    assert Link.parse(text) == link
    assert Link.parse(str(link)) == link


@pytest.mark.parametrize("text", ["", "0", "20/0", "20@-1", "fast"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Link.parse(text)


def test_a_link_passes_its_rate_and_not_more() -> None:
    with Lab([Link.parse("100"), Link.parse("20/100")]) as lab:
        receiver = start(lab, 0, RECEIVER, lab.host(0))
        before = lab.traffic()
        end(start(lab, 1, SENDER, lab.host(0), "2000000"))
        received, seconds = end(receiver).split()
        assert int(received) == 2_000_000
        assert int(received) / float(seconds) < 1.1 * 20e6 / 8  # a full bucket passes at once
        sent = lab.traffic()[1].sent_bytes - before[1].sent_bytes
        got = lab.traffic()[0].received_bytes - before[0].received_bytes
        assert 2_000_000 < got < 2_300_000  # headers, and now and then a segment twice
        assert 2_000_000 < sent < 2_300_000
        assert lab.wire_bytes() >= sent


def test_a_link_changes_while_traffic_flows() -> None:
    with Lab([Link.parse("1000"), Link.parse("0.5")]) as lab:
        receiver = start(lab, 0, RECEIVER, lab.host(0))
        began_s = time.monotonic()
        sender = start(lab, 1, SENDER, lab.host(0), "4000000")
        lab.set_link(1, Link.parse("200"))
        end(sender)
        end(receiver)
        assert time.monotonic() - began_s < 4e6 * 8 / 0.5e6 / 2  # half of what it takes at the old rate
        assert lab.links[1] == Link.parse("200")


def test_an_island_reaches_itself_and_nobody_else_until_it_rejoins() -> None:
    with Lab([Link.parse("100")] * 3) as lab:
        lab.cut_off([1, 2])
        assert not answers(lab, 0, 1, 3.0)
        assert not answers(lab, 1, 0, 3.0)
        assert answers(lab, 1, 2)
        lab.rejoin([1, 2])
        assert answers(lab, 0, 1)
        assert answers(lab, 2, 0)


def test_a_connection_across_a_cut_goes_on_after_it() -> None:
    with Lab([Link.parse("8"), Link.parse("8")]) as lab:
        receiver = start(lab, 0, RECEIVER, lab.host(0))
        sender = start(lab, 1, SENDER, lab.host(0), "1000000", "when it is told to")
        lab.cut_off([1])
        assert sender.stdin is not None
        sender.stdin.write("now\n")
        sender.stdin.flush()
        time.sleep(1.5)
        assert receiver.poll() is None
        lab.rejoin([1])
        end(sender)
        received, seconds = end(receiver).split()
        assert (int(received), float(seconds) > 1.5) == (1_000_000, True)


def test_a_lab_with_delays_refuses_to_be_cut() -> None:
    with Lab([Link.parse("100@1")] * 2) as lab, pytest.raises(LabFailed, match="delays"):
        lab.cut_off([1])


def test_a_delay_is_added_to_every_way() -> None:
    with Lab([Link.parse("100@30"), Link.parse("100@20")]) as lab:
        receiver = start(lab, 0, RECEIVER, lab.host(0))
        began_s = time.monotonic()
        end(start(lab, 1, SENDER, lab.host(0), "1"))
        end(receiver)
        assert time.monotonic() - began_s > 2 * (0.030 + 0.020)


def test_pairs_of_sites_have_round_trips_of_their_own() -> None:
    trips = {(0, 1): 40.0, (1, 2): 120.0}
    with Lab([Link.parse("100"), Link.parse("100@5"), Link.parse("100")], trips) as lab:
        for one, other, expected_ms in ((0, 1, 50.0), (2, 1, 130.0), (0, 2, 0.0)):
            receiver = start(lab, one, LISTENER, lab.host(one))
            dialler = start(lab, other, DIALLER, lab.host(one))
            assert dialler.stdout is not None
            measured_ms = float(dialler.stdout.readline())  # communicate() would miss what the first line came with
            dialler.communicate(timeout=LIMIT_S)
            receiver.kill()
            receiver.communicate()
            assert expected_ms <= measured_ms < expected_ms + 20.0


@pytest.mark.parametrize("text", ["0-0:5", "0-3:5", "0-1:-1", "0-1:5,1-0:6", "0-1", "a-b:5"])
def test_what_is_no_round_trip_between_two_of_the_peers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"round trip|could not convert|invalid literal"):
        parse_round_trips(text, 3)


def test_nothing_is_left_after_the_end() -> None:
    with Lab([Link.parse("100"), Link.parse("100@1")]) as lab:
        forgotten = start(lab, 1, "import time; print(1, flush=True); time.sleep(600)")
        assert len(ours()) == 3
    assert ours() == []
    assert forgotten.wait(LIMIT_S) == -signal.SIGKILL
    forgotten.communicate()


def test_nothing_is_left_after_an_exception() -> None:
    with pytest.raises(KeyError), Lab([Link.parse("100"), Link.parse("100")]):
        raise KeyError
    assert ours() == []


def test_nothing_is_left_when_the_lab_cannot_be_built() -> None:
    with pytest.raises(LabFailed), Lab([Link.parse("100"), Link.parse("0.0000001")]):
        pass
    assert ours() == []


def started_program() -> "tuple[subprocess.Popen[bytes], list[str]]":
    """The program in a process of its own, with its namespaces up."""
    command = [sys.executable, str(SCRIPTS / "netlab.py"), "--links", "100,100@1", "--", "sleep", "600"]
    program = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def up() -> list[str]:
        return [name for name in namespaces() if f"-{program.pid}-" in name]

    def has_all() -> bool:
        pids = [subprocess.run(["ip", "netns", "pids", name], capture_output=True).stdout for name in up()]
        return len(pids) == 3 and all(pids)

    wait_until(has_all, "the namespaces and what runs in them")
    return program, up()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_nothing(signum: signal.Signals) -> None:
    program, names = started_program()
    program.send_signal(signum)
    assert program.wait(LIMIT_S) == 130
    assert not set(names) & set(namespaces())


def test_what_a_killed_program_leaves_is_cleaned_with_its_processes() -> None:
    program, names = started_program()
    left = [int(pid) for name in names for pid in subprocess.check_output(["ip", "netns", "pids", name]).split()]
    program.kill()
    program.wait(LIMIT_S)
    assert set(names) <= set(namespaces())
    subprocess.run([sys.executable, str(SCRIPTS / "netlab.py"), "--clean"], check=True, capture_output=True)
    assert not set(names) & set(namespaces())
    wait_until(lambda: not any(is_running(pid) for pid in left), "the processes in them to be gone")


def test_a_lab_of_somebody_who_lives_is_not_cleaned() -> None:
    with Lab([Link.parse("100"), Link.parse("100")]):
        assert not set(ours()) & set(clean())
        assert len(ours()) == 3


def test_peers_in_different_namespaces_do_not_share_loopback() -> None:
    with Lab([Link.parse("100"), Link.parse("100")]) as lab:
        receiver = start(lab, 0, RECEIVER, "127.0.0.1")
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", 5000), timeout=5):
            pass
        receiver.kill()
        receiver.communicate()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
