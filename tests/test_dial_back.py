"""Dialling back: what an asker learns, and what nobody can make others do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from collab.errors import BadMessage, DialBackRefused, NetworkError
from collab.net.base import Stream
from collab.net.dial_back import (
    DIAL_TIMEOUT_S,
    HOSTS_REMEMBERED,
    MAX_DIALS,
    PER_HOST,
    DialBack,
    Refusal,
    ask_to_dial_back,
)
from collab.net.guard import Guard, GuardedTransport
from collab.net.quotas import QUOTAS, REACH_PROTOCOL
from collab.net.reaching import PATIENCE_S, find_reach
from collab.net.wire import Message
from collab.swarm.board import ProgressBoard
from collab.swarm.reachability import Answer
from collab.types import PeerId, Reachability, Role
from tests.fakes import FakeClock, FakeDirectory, FakeNetwork, FakeObserver, FakeTransport, make_ports, run
from tests.swarm.people import PEOPLE, record

HOST, PORT = "10.0.0.7", 4000
NEWCOMER = PEOPLE[0].peer_id
FINGERPRINT = "f" * 64


class Lab:
    """A vantage whose peers stand where the test puts them; implements ``Vantage``."""

    def __init__(self) -> None:
        self.hosts: dict[str, set[str]] = {}
        self.listening: dict[tuple[str, int], str] = {}
        self.dialled: list[tuple[str, int]] = []
        self.takes_s = 0.0
        self.at_once = self.most_at_once = 0

    async def hosts_of(self, peer: PeerId) -> set[str]:
        return self.hosts.get(peer, set())

    async def answers(self, peer: PeerId, host: str, port: int, *, timeout_s: float) -> bool:
        self.dialled.append((host, port))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(min(self.takes_s, timeout_s))
        self.at_once -= 1
        return self.listening.get((host, port)) == peer


Body = Callable[[FakeNetwork, Lab], Awaitable[None]]


def with_helper(body: Body) -> None:
    """Run ``body`` beside a peer called helper that dials back."""

    async def main() -> None:
        async with FakeNetwork() as network:
            lab = Lab()
            await DialBack(lab, FakeClock()).serve(network.join("helper"))
            await body(network, lab)

    run(main())


async def asked(network: FakeNetwork, name: str = "us", port: int = PORT) -> Answer:
    us = network.peers.get(PeerId(name)) or network.join(name)
    return await ask_to_dial_back(us, PeerId("helper"), port)


def refusal(error: pytest.ExceptionInfo[DialBackRefused]) -> str:
    return error.value.reason


def test_who_answers_where_it_is_seen_is_reached_and_told_where_that_is() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.hosts["us"] = {HOST}
        assert await asked(network) == Answer(helper=PeerId("helper"), host=HOST, is_reached=False)
        lab.listening[HOST, PORT] = "us"
        assert await asked(network) == Answer(helper=PeerId("helper"), host=HOST, is_reached=True)

    with_helper(body)


def test_somebody_else_at_our_port_is_not_us_and_the_asker_learns_nothing_of_it() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.hosts["us"] = {HOST}
        nobody = await asked(network)
        lab.listening[HOST, PORT] = "another peer behind the same router"
        assert await asked(network) == nobody

    with_helper(body)


def test_only_the_address_that_the_asker_comes_from_is_dialled_whatever_it_says() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.hosts["us"] = {HOST}
        stream = await network.join("us").open(PeerId("helper"), REACH_PROTOCOL, timeout_s=1.0)
        await stream.send(Message("dial me", {"port": PORT, "host": "10.9.9.9", "hosts": ["10.9.9.9"]}), timeout_s=1.0)
        await stream.receive(timeout_s=10.0)
        assert lab.dialled == [(HOST, PORT)]
        stream.close()

    with_helper(body)


@pytest.mark.parametrize("port", [-1, 0, 22, 80, 443, 1023, 65536, 1 << 40])
def test_ports_of_a_machines_services_and_impossible_ones_are_refused(port: int) -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.hosts["us"] = {HOST}
        with pytest.raises(DialBackRefused) as error:
            await asked(network, port=port)
        assert refusal(error) == Refusal.BAD_PORT
        assert not lab.dialled

    with_helper(body)


@pytest.mark.parametrize("fields", [{}, {"port": "4000"}, {"port": 4000.0}, {"port": True}, {"port": None}])
def test_a_port_that_is_no_number_ends_the_stream(fields: dict[str, object]) -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.hosts["us"] = {HOST}
        stream = await network.join("us").open(PeerId("helper"), REACH_PROTOCOL, timeout_s=1.0)
        await stream.send(Message("dial me", fields), timeout_s=1.0)
        with pytest.raises(NetworkError):
            await stream.receive(timeout_s=10.0)
        assert not lab.dialled

    with_helper(body)


def test_who_comes_through_a_relay_has_no_address_to_be_dialled() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        with pytest.raises(DialBackRefused) as error:
            await asked(network)
        assert refusal(error) == Refusal.NO_ADDRESS
        assert not lab.dialled

    with_helper(body)


def test_an_asker_is_dialled_once_at_a_time() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.hosts["us"], lab.takes_s = {HOST}, 1.0
        network.join("us")
        answers = await asyncio.gather(*(asked(network) for _ in range(3)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, DialBackRefused)]
        assert [each.reason for each in refused] == [Refusal.ALREADY_DIALLING] * 2
        assert len(lab.dialled) == 1

    with_helper(body)


def test_so_many_are_dialled_at_once_and_no_more_and_places_become_free_again() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        lab.takes_s = 60.0  # longer than a dial may take
        names = [f"peer-{number}" for number in range(MAX_DIALS + 4)]
        for number, name in enumerate(names):
            lab.hosts[name] = {f"10.0.1.{number}"}
        began_s = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(asked(network, name) for name in names), return_exceptions=True)
        assert asyncio.get_running_loop().time() - began_s <= DIAL_TIMEOUT_S + 0.1
        refused = [answer for answer in answers if isinstance(answer, DialBackRefused)]
        assert [each.reason for each in refused] == [Refusal.TOO_MANY] * 4
        assert lab.most_at_once == MAX_DIALS
        assert not (await asked(network, names[-1])).is_reached

    with_helper(body)


def test_one_address_is_dialled_so_often_and_no_more_whatever_identities_ask_and_others_are_not_held_up() -> None:
    async def body(network: FakeNetwork, lab: Lab) -> None:
        outcomes = []
        for number in range(3 * PER_HOST.burst):
            lab.hosts[f"identity-{number}"] = {HOST}
            try:
                outcomes.append(await asked(network, f"identity-{number}", port=2000 + number))
            except DialBackRefused as error:
                outcomes.append(error.reason)
        assert len(lab.dialled) == PER_HOST.burst
        assert set(outcomes[PER_HOST.burst :]) == {Refusal.TOO_OFTEN}
        lab.hosts["other"] = {"10.0.0.8"}
        assert not (await asked(network, "other")).is_reached
        await asyncio.sleep(1.0 / PER_HOST.per_s + 0.1)
        lab.hosts["late"] = {HOST}
        assert not (await asked(network, "late")).is_reached

    with_helper(body)


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            lab = Lab()
            server = DialBack(lab, FakeClock())
            await server.serve(network.join("helper"))
            for number in range(HOSTS_REMEMBERED + 50):
                lab.hosts[f"peer-{number}"] = {f"10.1.{number // 250}.{number % 250}"}
                await asked(network, f"peer-{number}")
            assert len(server._paces) == HOSTS_REMEMBERED

    run(main())


def test_the_guard_lets_one_peer_ask_a_few_times_and_no_more() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            lab, observer = Lab(), FakeObserver()
            lab.hosts["us"] = {HOST}
            guarded = GuardedTransport(network.join("helper"), Guard(FakeClock(), observer))
            await DialBack(lab, FakeClock()).serve(guarded)
            network.join("us")
            failures = 0
            for _ in range(3 * QUOTAS[REACH_PROTOCOL].streams.burst):
                try:
                    await asked(network)
                except NetworkError:
                    failures += 1
            assert len(lab.dialled) == QUOTAS[REACH_PROTOCOL].streams.burst
            assert failures == 2 * QUOTAS[REACH_PROTOCOL].streams.burst
            assert {event.reason for event in observer.events} == {"streams_too_often"}  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        Message("reached"),
        Message("reached", {"host": "example.org"}),
        Message("missed", {"host": 7}),
        Message("perhaps", {"host": HOST}),
        Message("refused"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(answer: Message) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await network.join("helper").serve(REACH_PROTOCOL, saying(answer))
            with pytest.raises(BadMessage):
                await asked(network)

    run(main())


def test_a_reason_that_nobody_knows_is_not_repeated_to_the_user() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            strange = Message("refused", {"reason": "\x1b[2Jobey", "text": "\x1b[2Jme"})
            await network.join("helper").serve(REACH_PROTOCOL, saying(strange))
            with pytest.raises(DialBackRefused) as error:
                await asked(network)
            assert refusal(error) == "unknown"
            assert "\x1b" not in str(error.value)

    run(main())


def saying(answer: Message) -> Callable[[Stream], Awaitable[None]]:
    async def handler(stream: Stream) -> None:
        await stream.receive(timeout_s=10.0)
        await stream.send(answer, timeout_s=10.0)
        await asyncio.sleep(1.0)

    return handler


# -- asking several ------------------------------------------------------------------------------------------------


class Newcomer(FakeTransport):
    """Listens at ``HOST``, as far as it knows."""

    async def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/127.0.0.1/tcp/{PORT}/p2p/{self.peer_id}", f"/ip4/{HOST}/tcp/{PORT}/p2p/{self.peer_id}")


class Swarm:
    """A newcomer, and others whose records are in the directory; some dial back, some lie."""

    def __init__(self, network: FakeNetwork) -> None:
        self.network, self.directory, self.asked = network, FakeDirectory(), list[int]()
        self.newcomer = Newcomer(network, NEWCOMER)
        network.peers[NEWCOMER] = self.newcomer

    async def add(
        self, person: int, answer: Message | None, *, role: Role = Role.TRAINER, after_s: float = 0.0
    ) -> None:
        """A peer that gives ``answer``; None: it serves no such protocol."""
        peer = PEOPLE[person].peer_id
        transport = self.network.join(peer)
        ports = make_ports(transport, self.directory)
        await ProgressBoard(ports, PEOPLE[person], FINGERPRINT).publish(record(person, role=role))

        async def handler(stream: Stream) -> None:
            self.asked.append(person)
            await stream.receive(timeout_s=10.0)
            await asyncio.sleep(after_s)
            await stream.send(answer or Message(""), timeout_s=10.0)
            await asyncio.sleep(1.0)

        if answer is not None:
            await transport.serve(REACH_PROTOCOL, handler)

    async def verdict(self, *bootstrap: int) -> Reachability:
        ports = make_ports(self.newcomer, self.directory)
        peers = [PEOPLE[person].peer_id for person in bootstrap]
        return (await find_reach(ports, PEOPLE[0], peers, FINGERPRINT)).reach


YES, NO = Message("reached", {"host": HOST}), Message("missed", {"host": HOST})


def in_a_swarm(body: Callable[[Swarm], Awaitable[None]]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await body(Swarm(network))

    run(main())


@pytest.mark.parametrize("truth", [True, False])
def test_a_backbone_that_lies_is_outvoted_by_others_of_the_swarm(truth: bool) -> None:
    async def body(swarm: Swarm) -> None:
        await swarm.add(1, NO if truth else YES, role=Role.BACKBONE)
        for person in (2, 3):
            await swarm.add(person, YES if truth else NO)
        assert (await swarm.verdict(1) is Reachability.DIRECT) == truth

    in_a_swarm(body)


def test_at_most_five_are_asked_backbones_first_and_nobody_twice() -> None:
    async def body(swarm: Swarm) -> None:
        await swarm.add(7, YES, role=Role.BACKBONE)
        for person in range(1, 6):
            await swarm.add(person, YES)
        await swarm.add(6, YES, role=Role.BACKBONE)
        assert await swarm.verdict(7) is Reachability.DIRECT
        assert len(swarm.asked) == len(set(swarm.asked)) == 5
        assert {6, 7} <= set(swarm.asked)

    in_a_swarm(body)


def test_a_bootstrap_peer_with_several_addresses_is_asked_once() -> None:
    async def body(swarm: Swarm) -> None:
        await swarm.add(1, YES, role=Role.BACKBONE)
        assert await swarm.verdict(1, 1) is Reachability.DIRECT
        assert swarm.asked == [1]

    in_a_swarm(body)


def test_joining_waits_for_no_helper_longer_than_it_says_and_takes_what_came() -> None:
    async def body(swarm: Swarm) -> None:
        await swarm.add(1, YES, role=Role.BACKBONE)
        await swarm.add(2, NO, after_s=60.0)
        await swarm.add(3, None)
        began_s = asyncio.get_running_loop().time()
        assert await swarm.verdict(1) is Reachability.DIRECT
        assert asyncio.get_running_loop().time() - began_s <= PATIENCE_S + 0.01

    in_a_swarm(body)


def test_a_swarm_of_which_nobody_can_help_makes_a_client_and_holds_nobody_up() -> None:
    async def body(swarm: Swarm) -> None:
        await swarm.add(1, None, role=Role.BACKBONE)
        began_s = asyncio.get_running_loop().time()
        assert await swarm.verdict(1) is Reachability.CLIENT
        assert asyncio.get_running_loop().time() - began_s < 0.1

    in_a_swarm(body)


def test_a_directory_that_does_not_answer_leaves_the_bootstrap_peers_word() -> None:
    async def body(swarm: Swarm) -> None:
        await swarm.add(1, YES, role=Role.BACKBONE)
        swarm.directory.is_silent = True
        assert await swarm.verdict(1) is Reachability.DIRECT

    in_a_swarm(body)
