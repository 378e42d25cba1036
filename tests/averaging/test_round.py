"""Whole rounds of a few peers: who ends up with which mean, and who is left out."""

import asyncio
import math

import numpy as np
import pytest

from collab.averaging.base import Aborted, Committed, Contribution, Outcome, Superseded
from collab.averaging.messages import PARTS_PROTOCOL, VERDICT_PROTOCOL
from collab.averaging.plan import PART_ELEMENTS
from collab.averaging.timeouts import FIRST
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId, Vector
from tests.averaging.swarm import MAX_WEIGHT, L, Rounds, exact_mean, mean_of_record, random_vectors
from tests.fakes import FakeNetwork, run

WEIGHTS = {"a": 1.0, "b": 2.5, "c": 7.0, "d": 0.25}


def check_committed(outcomes: dict[str, Outcome], vectors: dict[str, Vector], weights: dict[str, float]) -> None:
    """All of ``outcomes`` are one commit of the mean of ``vectors``."""
    results = [outcome for outcome in outcomes.values() if isinstance(outcome, Committed)]
    assert len(results) == len(outcomes), outcomes
    assert len({result.mean.tobytes() for result in results}) == 1
    assert len({result.lineage for result in results}) == 1
    assert results[0].lineage != L
    assert results[0].record.contributors == tuple((PeerId(name), weights[name]) for name in sorted(vectors))
    assert np.abs(results[0].mean - exact_mean(vectors, weights)).max() < 1e-6


def check_mended(outcomes: dict[str, Outcome], vectors: dict[str, Vector], weights: dict[str, float]) -> None:
    """All of ``outcomes`` are one commit; every element is the mean over those whose data the record says is there."""
    results = [outcome for outcome in outcomes.values() if isinstance(outcome, Committed)]
    assert len(results) == len(outcomes), outcomes
    assert len({result.mean.tobytes() for result in results}) == 1
    assert len({result.record for result in results}) == 1
    assert np.abs(results[0].mean - mean_of_record(results[0].record, vectors, weights)).max() < 1e-6


@pytest.mark.parametrize("names", ["ab", "abc", "dcba"])
@pytest.mark.parametrize("num_elements", [1, 3, 1000, 4 * PART_ELEMENTS + 7])
def test_peers_end_with_the_same_bytes_of_the_weighted_mean(names: str, num_elements: int) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "b")
            for name in names:
                await rounds.add_trainer(name)
            vectors = random_vectors(names, num_elements)
            before = {name: vector.copy() for name, vector in vectors.items()}
            outcomes = await rounds.average(vectors, WEIGHTS)
            check_committed(outcomes, vectors, WEIGHTS)
            assert all(np.array_equal(vectors[name], before[name]) for name in names)

    run(main())


def test_in_half_precision_all_end_with_the_same_bytes_close_to_the_mean() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a", policy="half")
            for name in "abcd":
                await rounds.add_trainer(name, can_reduce=name != "c")
            vectors = random_vectors("abcd", 2 * PART_ELEMENTS + 1)
            outcomes = await rounds.average(vectors, WEIGHTS)
            means = [outcome.mean for outcome in outcomes.values() if isinstance(outcome, Committed)]
            assert len(means) == 4
            assert len({mean.tobytes() for mean in means}) == 1
            assert np.abs(means[0] - exact_mean(vectors, WEIGHTS)).max() < 5e-3

    run(main())


def test_the_same_peers_average_epoch_after_epoch() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name)
            lineages: set[Lineage] = set()
            for epoch in range(3):
                vectors = random_vectors("ab", 10 + epoch)
                outcomes = await rounds.average(vectors, WEIGHTS, epoch=epoch)
                check_committed(outcomes, vectors, WEIGHTS)
                lineages.update(outcome.lineage for outcome in outcomes.values() if isinstance(outcome, Committed))
            assert len(lineages) == 3

    run(main())


def test_an_auxiliary_leads_and_reduces_and_sends_no_vector_of_its_own() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            assistant = await rounds.add_auxiliary("helper")
            for name in "ab":
                await rounds.add_trainer(name, can_reduce=False)
            vectors = random_vectors("ab", 3 * PART_ELEMENTS)
            check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)
            await asyncio.sleep(1)
            assert assistant.rounds_committed == 1
            parts = [(sender, to) for sender, to, _, message in network.sent if message.kind == "part"]
            assert set(parts) == {("a", "helper"), ("b", "helper")}

    run(main())


def test_peers_of_another_epoch_or_history_are_in_no_common_group() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abcde":
                await rounds.add_trainer(name)
            vectors = random_vectors("abcde", 8)
            late = Contribution(epoch=1, lineage=L, vector=vectors["d"], weight=1.0)
            other = Contribution(epoch=0, lineage=Lineage("elsewhere"), vector=vectors["e"], weight=1.0)
            mine = {name: vectors[name] for name in "abc"}
            main_group, fourth, fifth = await asyncio.gather(
                rounds.average(mine, WEIGHTS),
                rounds.engines["d"].average(late),
                rounds.engines["e"].average(other),
            )
            check_committed(main_group, mine, WEIGHTS)
            for outcome in (fourth, fifth):
                assert isinstance(outcome, Aborted)
                assert outcome.reason == "no_quorum"

    run(main())


def test_a_peer_of_another_run_is_refused_with_both_fingerprints_and_disturbs_nobody() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name)
            await rounds.add_trainer("c", fingerprint="g")
            vectors = random_vectors("abc", 8)
            outcomes = await rounds.average(vectors, WEIGHTS)
            refused = outcomes.pop("c")
            assert isinstance(refused, Aborted)
            assert refused.reason == "refused"
            assert "fingerprint is g" in refused.text
            assert "run's is f" in refused.text
            del vectors["c"]
            check_committed(outcomes, vectors, WEIGHTS)

    run(main())


@pytest.mark.parametrize("weight", [MAX_WEIGHT * 1.001, 1e12, 2.0**60, math.inf, math.nan, -1.0, 0.0])
def test_an_absurd_weight_is_not_averaged_in_and_disturbs_nobody(weight: float) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name)
            await rounds.add_trainer("c", target=math.inf)  # who knows no bounds
            vectors = random_vectors("abc", 8)
            outcomes = await rounds.average(vectors, {**WEIGHTS, "c": weight})
            assert isinstance(outcomes.pop("c"), Aborted)
            del vectors["c"]
            check_committed(outcomes, vectors, WEIGHTS)

    run(main())


def test_what_was_accumulated_for_very_long_counts_as_no_more_than_the_limit() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)
            vectors = random_vectors("abc", 8)
            outcomes = await rounds.average(vectors, {**WEIGHTS, "c": 1e6 * MAX_WEIGHT})
            check_committed(outcomes, vectors, {**WEIGHTS, "c": MAX_WEIGHT})

    run(main())


@pytest.mark.parametrize("bad", ["a", "b", "c"])
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
@pytest.mark.parametrize("where", [slice(0, 1), slice(-1, None), slice(None)], ids=["first", "last", "everywhere"])
def test_a_contributor_with_nan_is_left_out_and_the_others_commit_in_the_same_call(
    bad: str, order: str, where: slice
) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)
            fine = random_vectors("abc", 3 * PART_ELEMENTS)
            vectors = {name: fine[name].copy() for name in order}
            vectors[bad][where] = np.nan
            kept = vectors[bad].copy()
            outcomes = await rounds.average(vectors, WEIGHTS)
            left_out = outcomes.pop(bad)
            assert isinstance(left_out, Committed | Superseded)
            assert vectors[bad].tobytes() == kept.tobytes()
            check_mended(outcomes, vectors, WEIGHTS)
            record = left_out.record
            assert record is not None
            assert record.used_of(PeerId(bad)) != ((0, 3 * PART_ELEMENTS),)
            assert not any(np.isnan(vectors[bad][start:stop]).any() for start, stop in record.used_of(PeerId(bad)))

    run(main())


@pytest.mark.parametrize("order", ["abcd", "dcba"])
def test_a_contributor_with_another_number_of_elements_is_left_out_and_the_others_commit(order: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abcd":
                await rounds.add_trainer(name)
            vectors = {name: random_vectors("abcd", 100)[name] for name in order}
            vectors["c"] = np.ones(1, np.float32)
            outcomes = await rounds.average(vectors, WEIGHTS)
            assert isinstance(outcomes.pop("c"), Aborted)
            del vectors["c"]
            check_committed(outcomes, vectors, WEIGHTS)

    run(main())


def test_without_a_majority_of_the_trainers_the_round_is_aborted_and_says_so() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abcd":
                await rounds.add_trainer(name)
            rounds.absent = {"c", "d"}
            outcomes = await rounds.average(random_vectors("ab", 8))
            for outcome in outcomes.values():
                assert isinstance(outcome, Aborted)
                assert outcome.reason == "no_quorum"
                assert "2 of 4" in outcome.text

    run(main())


def test_without_anybody_who_can_reduce_the_round_is_aborted() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "ab":
                await rounds.add_trainer(name, can_reduce=False)
            outcomes = await rounds.average(random_vectors("ab", 8))
            assert {type(outcome) for outcome in outcomes.values()} == {Aborted}

    run(main())


def test_a_trainer_that_was_left_out_learns_that_the_swarm_went_on_and_can_catch_up() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "a")
            for name in "abc":
                await rounds.add_trainer(name)
            rounds.absent = {"c"}
            vectors = random_vectors("abc", 8)
            both = {name: vectors[name] for name in "ab"}
            outcomes = await rounds.average(both, WEIGHTS)
            check_committed(outcomes, both, WEIGHTS)
            rounds.ahead = {PeerId("a"), PeerId("b")}
            late = (await rounds.average({"c": vectors["c"]}))["c"]
            assert isinstance(late, Superseded)
            missed = await rounds.engines["c"].history.fetch([PeerId("b")], (0, L), 8)
            assert missed is not None
            check_committed({**outcomes, "c": missed}, both, WEIGHTS)

    run(main())


def test_a_round_whose_result_somebody_holds_is_not_led_again_though_no_record_tells_of_it_yet() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abcd":
                await rounds.add_trainer(name)
            rounds.trainers -= {PeerId("c"), PeerId("d")}
            vectors = random_vectors("abcd", 8)
            outcomes = await rounds.average({name: vectors[name] for name in "ab"})
            assert {type(outcome) for outcome in outcomes.values()} == {Committed}
            rounds.trainers = {PeerId("c"), PeerId("d")}
            others = {name: vectors[name] for name in "cd"}
            late = await rounds.average(others)
            assert {type(outcome) for outcome in late.values()} == {Superseded}
            for name in "ab":
                network.leave(name)
            in_doubt = await rounds.average(others)
            assert {type(outcome) for outcome in in_doubt.values()} == {Superseded}, "they may be cut off only"
            rounds.missed_s = FIRST.reform_s + 1.0
            in_doubt = await rounds.average(others)
            assert {type(outcome) for outcome in in_doubt.values()} == {Superseded}, "they were in a round just now"
            await asyncio.sleep(rounds.missed_s)
            check_committed(await rounds.average(others), others, dict.fromkeys("cd", 1.0))

    run(main())


def test_who_does_not_say_whether_it_knows_who_decides_is_not_taken_along_by_a_leader_that_does_not() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            for name in "abc":
                await rounds.add_trainer(name)
            vectors = random_vectors("abc", 8)
            rounds.leaders = [PeerId("a")]
            first = (await rounds.average(vectors))["a"]
            assert isinstance(first, Committed)
            await rounds.add_auxiliary("helper")
            rounds.leaders = [PeerId("helper")]

            async def say_nothing(stream: Stream) -> None:
                await asyncio.sleep(3600)

            handlers = [network.peers[PeerId(name)].handlers for name in "abc"]
            answers = [each[VERDICT_PROTOCOL] for each in handlers]
            for each in handlers:
                each[VERDICT_PROTOCOL] = say_nothing
            unsaid = await rounds.average(vectors, epoch=1, lineage=first.lineage)
            assert {outcome.reason for outcome in unsaid.values() if isinstance(outcome, Aborted)} == {"no_quorum"}
            assert len(unsaid) == 3
            for each, answer in zip(handlers, answers, strict=True):
                each[VERDICT_PROTOCOL] = answer
            said = await rounds.average(vectors, epoch=1, lineage=first.lineage)
            assert {type(outcome) for outcome in said.values()} == {Committed}

    run(main())


def test_contributors_to_the_step_before_are_counted_though_their_last_word_is_older() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abcd":
                await rounds.add_trainer(name)
            rounds.behind = {PeerId("b"), PeerId("c"), PeerId("d")}
            rounds.absent = {"d"}
            first = (await rounds.average(random_vectors("abc", 8)))["a"]
            assert isinstance(first, Committed)
            rounds.absent = {"b", "c", "d"}
            alone = (await rounds.average(random_vectors("a", 8), epoch=1, lineage=first.lineage))["a"]
            assert isinstance(alone, Aborted)
            assert "1 of 3" in alone.text

    run(main())


def test_a_leader_that_is_gone_is_replaced_by_the_next_one_in_the_same_call() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "gone", "b")
            for name in "ab":
                await rounds.add_trainer(name)
            vectors = random_vectors("ab", 8)
            check_committed(await rounds.average(vectors, WEIGHTS), vectors, WEIGHTS)

    run(main())


def test_without_any_leader_the_round_is_aborted() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network)
            await rounds.add_trainer("a")
            outcome = (await rounds.average(random_vectors("a", 8)))["a"]
            assert isinstance(outcome, Aborted)
            assert outcome.reason == "no_leader"

    run(main())


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_a_contributor_whose_streams_break_is_left_out_and_the_others_commit(victim: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)

            def cut(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                return None if victim in (sender, to) and protocol == PARTS_PROTOCOL else message

            network.tamper = cut
            vectors = random_vectors("abc", 3 * PART_ELEMENTS)
            outcomes = await rounds.average(vectors, WEIGHTS)
            assert not isinstance(outcomes.pop(victim), Committed)
            check_mended(outcomes, vectors, WEIGHTS)

    run(main())


def test_parts_changed_on_the_way_back_are_never_committed() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "helper")
            await rounds.add_auxiliary("helper")
            for name in "abc":
                await rounds.add_trainer(name)

            def corrupt(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if message.kind == "result" and (sender, to) == ("helper", "a"):
                    return Message(message.kind, message.fields, bytes(len(message.payload)))
                return message

            network.tamper = corrupt
            vectors = random_vectors("abc", 100)
            outcomes = await rounds.average(vectors, WEIGHTS)
            commits = {o.mean.tobytes() for o in outcomes.values() if isinstance(o, Committed)}
            assert len(commits) <= 1
            assert not isinstance(outcomes["a"], Committed)

    run(main())


def test_a_second_attempt_stands_above_what_was_promised_in_the_first() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            rounds = Rounds(network, "c", "a")
            for name in "abc":
                await rounds.add_trainer(name)
            numbers: list[int] = []

            def die(sender: PeerId, to: PeerId, protocol: str, message: Message) -> Message | None:
                if message.kind == "begin" and to == "b":
                    numbers.append(message.fields["ballot"])
                is_of_first = sender == "c" and message.kind not in ("begin", "welcome", "wait", "coming")
                return None if is_of_first or message.kind == "resume" else message

            network.tamper = die
            vectors = random_vectors("abc", 8)
            outcomes = await rounds.average({name: vectors[name] for name in "ab"})
            assert {type(outcome) for outcome in outcomes.values()} == {Committed}, outcomes
            assert len(numbers) > 1
            assert numbers == sorted(set(numbers)), "each attempt has a higher ballot than the one before"

    run(main())
