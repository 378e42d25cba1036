"""What is published of a run's past: it goes on with whoever publishes, names nobody who did not agree, stays small."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from collab.metrics.names import EVAL_LOSS, LOSS
from collab.swarm.identity import Identity
from collab.swarm.orders import OrderBook
from collab.swarm.statements import Ban, Rollback
from collab.types import PeerId
from peers.credits import MOST_PEERS, Credit
from peers.hub_history import (
    MOST_CHARACTERS,
    MOST_NAMED,
    MOST_OF_ONE,
    MOST_POINTS,
    MOST_WITHDRAWN,
    Given,
    History,
    merged,
    own_history,
    run_key,
    taken_back,
    thinned,
    unnamed,
    until,
    without_undone,
)
from peers.hub_history_file import LATEST_S, MOST_BYTES, MOST_RUNS, read_history, written

OWNER = Identity.from_seed(b"o" * 32)
RUN, OLDER = "f" * 64, "e" * 64
Peers = list[tuple[PeerId, Credit]]


def peers(**given: tuple[str, int]) -> Peers:
    """Name and samples of each; without a name: it does not want to be named."""
    return [(PeerId(peer), Credit(name, 0, samples)) for peer, (name, samples) in given.items()]


def seen(loss: Mapping[int, float] | None = None, run: str = RUN, era: str = "", **given: tuple[str, int]) -> History:
    return own_history(run, era, {LOSS.name: loss or {}}, peers(**given))


def thanks(history: History) -> tuple[dict[str, int], int, int]:
    """Who is named with what, and how many others gave how much."""
    return {one.name: one.total for one in history.named}, history.num_others, history.others.total


def test_what_two_backbones_have_seen_is_one_history() -> None:
    theirs = seen({1: 5.0, 2: 4.0, 3: 3.0}, a=("Anna", 100), b=("", 50), c=("", 20))
    ours = seen({3: 2.5, 4: 2.0}, a=("Anna", 140), d=("Dora", 10), c=("", 30))
    both = merged(read_history(written(theirs)), ours)
    assert both.curves[LOSS.name] == {1: 5.0, 2: 4.0, 3: 2.5, 4: 2.0}, "of an epoch that both know, our own"
    assert thanks(both) == ({"Anna": 140, "Dora": 10}, 1, 30)
    assert thanks(merged(ours, theirs)) == thanks(both)
    assert read_history(written(both)) == both


def test_of_who_is_not_named_there_are_sums_only() -> None:
    data = written(seen({}, a=("Anna", 100), hidden=("", 50)))
    assert b"hidden" not in data
    (run,) = json.loads(data)["runs"].values()
    assert run["machines"] == 2
    assert run["samples"] == 150
    assert [name for name, _ in run["named"].values()] == ["Anna"]
    assert RUN not in data.decode(), "peers are known by a digest, which nobody finds elsewhere"


def heard(theirs: History, at_s: float, **given: tuple[str, int]) -> History:
    """What goes to the Hub, where ``theirs`` is, by a backbone that has heard everybody last at ``at_s``."""
    now = [(peer, replace(credit, said_at_s=at_s)) for peer, credit in peers(**given)]
    merging = merged(merged(theirs, taken_back(RUN, now, theirs)), own_history(RUN, "", {}, now))
    return read_history(written(merging))


def test_who_takes_the_word_back_is_named_no_more_whoever_has_named_them() -> None:
    assert thanks(heard(seen({}, a=("Anna", 100), b=("Bob", 10)), 0.0, a=("", 120))) == ({"Bob": 10}, 1, 110)


def test_a_name_that_was_taken_back_comes_again_by_its_owners_word_and_not_by_a_backbone_that_was_off() -> None:
    first = heard(History(), 10.0, a=("Anna", 100), b=("Bob", 10))
    without = heard(first, 20.0, a=("", 120))
    assert thanks(without) == ({"Bob": 10}, 1, 110)
    for back in (heard(without, 10.0, a=("Anna", 100)), merged(first, without), merged(without, first)):
        assert thanks(back) == ({"Bob": 10}, 1, 110)
        assert thanks(heard(back, 15.0, a=("Anna", 100))) == ({"Bob": 10}, 1, 110)
        agreed = heard(back, 30.0, a=("Anna", 130))
        assert thanks(agreed) == ({"Anna": 130, "Bob": 10}, 0, 0)
        assert thanks(heard(agreed, 20.0, a=("", 120))) == thanks(agreed), "of a backbone that has not heard it yet"


def test_of_who_has_never_agreed_not_even_a_digest_is_told() -> None:
    (told,) = heard(heard(History(), 10.0, a=("", 100), b=("Bob", 10)), 20.0, a=("", 120)).runs.values()
    assert (len(told.named), len(told.words)) == (1, 1)


def test_who_is_not_among_those_who_gave_most_has_not_taken_anything_back() -> None:
    many = {f"p{peer}": (f"person {peer}", 10 + peer) for peer in range(MOST_NAMED + 1)}
    both = merged(History(), seen({}, **many))
    assert thanks(merged(both, seen({}, p0=("person 0", 900))))[0]["person 0"] == 900


def test_who_is_banned_for_good_is_named_no_more_and_counts_on() -> None:
    both = seen({}, a=("rude words", 100), b=("Bob", 10))
    bans = [Ban(who="a", reason="its name"), Ban(who="b", reason="floods", until_s=5.0)]
    assert thanks(merged(both, both, unnamed(RUN, [], bans))) == ({"Bob": 10}, 1, 100)


def test_whose_invite_is_banned_for_good_is_named_no_more_whoever_has_named_them() -> None:
    theirs = seen({}, a=("rude words", 100), b=("more of them", 30), c=("Bob", 10))
    now = [
        (PeerId("a"), Credit("rude words", 0, 100, "an invite")),
        (PeerId("b"), Credit("more of them", 0, 30, "an invite")),
        (PeerId("c"), Credit("Bob", 0, 10, "another one")),
    ]
    bans = [Ban(who="an invite", reason="names"), Ban(who="another one", reason="floods", until_s=5.0)]
    both = merged(theirs, own_history(RUN, "", {}, now), unnamed(RUN, now, bans))
    assert thanks(both) == ({"Bob": 10}, 2, 130)


def test_who_agrees_later_is_not_counted_twice() -> None:
    both = merged(seen({}, a=("", 100)), seen({}, a=("Anna", 110)))
    assert thanks(both) == ({"Anna": 110}, 0, 0)


def test_a_run_that_goes_on_from_another_thanks_the_people_of_both() -> None:
    before = seen({1: 5.0}, run=OLDER, a=("Anna", 100), b=("", 50))
    both = merged(before, seen({2: 4.0}, a=("Anna", 30), c=("", 20)))
    again = merged(read_history(written(both)), seen({2: 4.0, 3: 3.0}, a=("Anna", 40), c=("", 25)))
    assert sorted((one.name, one.total) for one in again.named) == [("Anna", 40), ("Anna", 100)]
    assert (again.num_others, again.others.total) == (2, 75)
    assert sorted(again.curves[LOSS.name]) == [1, 2, 3]


# -- rollbacks ---------------------------------------------------------------------------------------------------------


def orders(*rollbacks: int) -> OrderBook:
    book = OrderBook(RUN, OWNER.peer_id)
    for epoch in rollbacks:
        book = book.extended([book.signed(Rollback(to_epoch=epoch, lineage="l"), OWNER, 0.0)])
    return book


def test_what_a_rollback_has_undone_is_in_no_curve_also_when_the_run_has_gone_further_since() -> None:
    loss = {epoch: float(epoch) for epoch in range(1, 9)}
    book = orders(5, 3)
    first, second = (order.mark for order in book.orders)
    for era, last in (("", 3), (first, 3), (second, 8), ("of another run", 3)):
        assert max(without_undone(seen(loss, era=era), book).curves[LOSS.name]) == last, era
    assert max(without_undone(seen(loss), orders()).curves[LOSS.name]) == 8
    both = merged(without_undone(seen(loss), book), seen({4: 9.0, 9: 1.0}, era=second))
    assert both.curves[LOSS.name] == {1: 1.0, 2: 2.0, 3: 3.0, 4: 9.0, 9: 1.0}
    assert both.era == second
    assert max(until(both, 4).curves[LOSS.name]) == 4


# -- it stays small ----------------------------------------------------------------------------------------------------


def test_a_thinned_curve_has_its_ends_and_stays_as_it_is_wherever_it_was_thin() -> None:
    """However often it is published with what is new."""
    curve: dict[int, float] = {}
    for last in range(0, 60_000, 977):
        curve = thinned({**curve, **{epoch: float(epoch) for epoch in range(max(last - 977, 0), last + 1)}})
        assert len(curve) <= MOST_POINTS
        assert max(curve) == last
    gaps = [later - before for before, later in zip(curve, list(curve)[1:], strict=False)]
    assert len(curve) > MOST_POINTS // 2 - 2
    assert max(gaps) <= 2 * sorted(gaps)[len(gaps) // 2], "old epochs are as dense as new ones"
    assert thinned(curve) == curve
    assert thinned({}) == {}
    assert thinned({7: 1.0}) == {7: 1.0}


def test_the_largest_history_can_be_read_again() -> None:
    runs = {}
    for number in range(MOST_RUNS + 3):
        many = {f"p{peer}": ("\x01" * 2 * MOST_CHARACTERS, 2 * MOST_OF_ONE) for peer in range(MOST_NAMED + 50)}
        (most,) = merged(History(), seen({}, run=str(number), **many)).runs.values()
        gone = {f"{peer:016x}": 1e10 / 7.0 for peer in range(MOST_WITHDRAWN)}
        runs[run_key(str(number))] = replace(most, words={**dict.fromkeys(most.words, 1e10 / 7.0), **gone})
    loss = {epoch * 2**40: 1e-300 for epoch in range(3000)}
    history = History(curves={LOSS.name: loss, EVAL_LOSS.name: loss}, runs=runs)
    data = written(history)
    assert len(data) < MOST_BYTES
    again = read_history(data)
    assert len(again.runs) == MOST_RUNS
    assert all(len(run.named) == MOST_NAMED and run.machines == MOST_NAMED + 50 for run in again.runs.values())
    assert again.others.total >= 0


def test_a_crowd_of_liars_does_not_make_it_unreadable() -> None:
    crowd = {f"p{peer}": (f"liar {peer}", 2 * MOST_OF_ONE) for peer in range(MOST_PEERS)}
    both = merged(seen({1: 5.0}, a=("Anna", 100)), seen({}, **crowd))
    assert read_history(written(both)).curves[LOSS.name] == {1: 5.0}


# -- what anybody may have written -------------------------------------------------------------------------------------

GOOD = json.loads(written(seen({1: 5.0}, a=("Anna", 100))))
(KEY,) = GOOD["runs"]
(DIGEST,) = GOOD["runs"][KEY]["named"]


def changed(**fields: Any) -> bytes:
    return json.dumps({**GOOD, **fields}).encode()


def run_of(**fields: Any) -> bytes:
    return changed(runs={KEY: {**GOOD["runs"][KEY], **fields}})


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"3", b"null", b"[" * 100_000, b"\xff", b" " * (MOST_BYTES + 1),
        changed(format=2), changed(format=None), changed(era=3), changed(era="x" * 41), changed(era="\ud800"),
        changed(curves=None), changed(runs=[]), changed(runs={"../x": GOOD["runs"][KEY]}), changed(runs={KEY: []}),
        changed(runs={f"{number:016x}": GOOD["runs"][KEY] for number in range(MOST_RUNS + 1)}),
        *(changed(curves={"loss": curve}) for curve in (
            None, 3, "ab", [1], [[1]], [[1, 2, 3]], [[True, 1.0]], [[1.5, 1.0]], [[-1, 1.0]], [[2**60, 1.0]],
            [[1, "x"]], [[1, None]], [[1, True]], [[1, 10**400]], [[e, 1.0] for e in range(MOST_POINTS + 1)],
        )),
        changed(curves={"loss": [[1, float("nan")]]}), changed(curves={"loss": [[1, float("inf")]]}),
        run_of(machines=-1), run_of(machines=1.5), run_of(machines=0), run_of(samples=99), run_of(samples=2**63),
        run_of(samples="100"), run_of(named=None), run_of(named={"short": ["Anna", 1]}),
        *(run_of(named={DIGEST: one}) for one in (
            None, ["Anna"], ["", 1], ["x" * 41, 1], [3, 1], ["Anna", -1], ["Anna", True], ["Anna", 2**51],
        )),
        *(run_of(words=words) for words in (
            None, [], {"short": 1.0}, *({DIGEST: at_s} for at_s in (None, "1", True, -1.0, 2 * LATEST_S, float("nan"))),
            {f"{peer:016x}": 1.0 for peer in range(MOST_NAMED + MOST_WITHDRAWN + 1)},
        )),
    ],
)  # fmt: skip
def test_what_no_backbone_writes_is_not_taken(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_history(data)


def test_curves_that_we_do_not_know_are_left_out() -> None:
    told = read_history(changed(curves={"loss": [[1, 5]], "later_version": "anything"}))
    assert told.curves == {LOSS.name: {1: 5.0}}
    assert told.runs[run_key(RUN)] == Given(machines=1, samples=100, named={DIGEST: ("Anna", 100)}, words={DIGEST: 0.0})


def test_what_an_earlier_version_has_written_without_the_times_is_read() -> None:
    told = {key: value for key, value in GOOD["runs"][KEY].items() if key != "words"}
    assert read_history(changed(runs={KEY: told})) == read_history(written(seen({1: 5.0}, a=("Anna", 100))))


def test_no_bytes_at_all_make_it_fail_in_another_way() -> None:
    rng, good = random.Random(1), written(seen({1: 5.0, 2: 4.0}, a=("Anna", 100), b=("", 5)))
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            written(read_history(bytes(data)))
        except ValueError:
            continue
