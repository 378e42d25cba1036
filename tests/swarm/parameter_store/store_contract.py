"""What every parameter store does. Subclasses say how one is made, and what else holds for it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest

from collab.data.work_units import Unit
from collab.errors import ShapeMismatch, StateError
from collab.swarm.parameter_store.base import Kept, Out, ParameterStore, Push, Stored, Verdict
from collab.types import PeerId, Vector

FIRST = np.array([1.0, -2.0, 3.0], np.float32)


def push(shard: int, values: Vector, **others: object) -> Push:
    fields = {"unit": Unit(1, shard), "lease": f"lease {shard}", "values": values, "based_on": 0, "alpha": 0.7}
    return Push(**(fields | others))  # type: ignore[arg-type]


def out(pass_number: int, shard: int, client: str = "anna", until_at_s: float = 1764374400.25) -> Out:
    unit = Unit(pass_number, shard)
    return Out(unit=unit, lease="a", client=PeerId(client), began_at_s=1764374400.125, until_at_s=until_at_s)


def now(store: ParameterStore) -> Stored:
    stored = store.read()
    assert stored is not None
    return stored


class StoreContract(ABC):
    """Every test gets two views of one store, as two servers have them."""

    @abstractmethod
    def open(self) -> AbstractContextManager[tuple[ParameterStore, ParameterStore]]: ...

    @pytest.fixture
    def stores(self) -> Iterator[tuple[ParameterStore, ParameterStore]]:
        with self.open() as stores:
            yield stores

    @contextmanager
    def begun(self) -> Iterator[tuple[ParameterStore, ParameterStore]]:
        with self.open() as stores:
            assert stores[0].begin(Kept.at_first(FIRST))
            yield stores

    def test_an_empty_one_has_nothing_and_takes_nothing(self, stores: tuple[ParameterStore, ParameterStore]) -> None:
        assert stores[0].read() is None
        with pytest.raises(StateError):
            stores[1].assimilate(push(0, FIRST))

    def test_the_first_state_is_made_once(self, stores: tuple[ParameterStore, ParameterStore]) -> None:
        assert stores[0].begin(Kept.at_first(FIRST))
        assert not stores[1].begin(Kept.at_first(FIRST + 1))
        stored = now(stores[1])
        assert stored.version == 0
        np.testing.assert_array_equal(stored.values, FIRST)

    def test_another_one_goes_on_from_what_was_kept(self) -> None:
        with self.begun() as stores:
            for shard in (0, 3):
                stores[0].assimilate(push(shard, FIRST + shard))
            stores[1].assimilate(push(1, FIRST, unit=Unit(2, 1), lease="later"))
            kept = stores[1].keep()
            assert kept is not None
            assert kept.stored.version == 3
            assert kept.done == {Unit(1, 0): "lease 0", Unit(1, 3): "lease 3", Unit(2, 1): "later"}
        with self.open() as others:
            assert others[0].keep() is None
            assert others[0].begin(kept)
            assert not others[1].begin(Kept.at_first(FIRST))
            assert others[1].keep().done == kept.done  # type: ignore[union-attr]  # it has begun
            np.testing.assert_array_equal(now(others[1]).values, kept.stored.values)
            assert others[1].assimilate(push(3, FIRST + 3)).verdict == Verdict.AGAIN
            answer = others[0].assimilate(push(2, FIRST, based_on=3))
            assert (answer.verdict, answer.version) == (Verdict.TAKEN, 4)

    def test_it_knows_up_to_which_pass_units_are_done(self) -> None:
        with self.begun() as stores:
            assert list(stores[0].passes()) == []
            stores[0].assimilate(push(0, FIRST, unit=Unit(12, 1)))
            assert list(stores[1].passes()) == list(range(1, 13)), "nothing of those before"
            stores[0].assimilate(push(1, FIRST, unit=Unit(3, 0)))
            assert stores[1].passes().stop == 13

    def test_of_what_is_settled_nothing_is_kept_but_that_it_is_done(self) -> None:
        with self.begun() as stores:
            for number in (1, 2, 3):
                stores[0].assimilate(push(0, FIRST, unit=Unit(number, 0), lease=f"of {number}"))
            stores[1].settle(3)
            stores[0].settle(2)
            assert stores[0].passes() == range(3, 4)
            assert [stores[0].done(number) for number in (1, 2, 3)] == [None, None, {0: "of 3"}]
            answer = stores[0].assimilate(push(0, FIRST + 1, unit=Unit(2, 0), lease="of 2"))
            assert (answer.verdict, answer.version) == (Verdict.DONE, 3), "it counts once, whoever has done it"
            kept = stores[1].keep()
            assert kept is not None
            assert (kept.done, kept.first_open) == ({Unit(3, 0): "of 3"}, 3)
        with self.open() as others:
            assert others[0].begin(kept)
            assert others[1].passes() == range(3, 4)
            assert others[1].assimilate(push(5, FIRST, unit=Unit(1, 5))).verdict == Verdict.DONE

    def test_what_is_out_is_known_to_every_server_until_it_is_back_or_done_or_settled(self) -> None:
        with self.begun() as stores:
            assert stores[0].out() == []
            for number, shard in ((1, 0), (1, 1), (2, 10), (2, 11)):
                stores[0].note_out(out(number, shard))
            stores[1].note_out(out(1, 1, client="ben", until_at_s=1764374500.75))
            stores[1].note_back(Unit(2, 11))
            stores[0].note_back(Unit(2, 12))
            assert sorted(stores[1].out(), key=lambda one: one.unit) == [
                out(1, 0),
                out(1, 1, client="ben", until_at_s=1764374500.75),
                out(2, 10),
            ]
            assert stores[0].assimilate(push(1, FIRST)).verdict == Verdict.TAKEN
            assert {one.unit for one in stores[0].out()} == {Unit(1, 0), Unit(2, 10)}
            stores[1].settle(2)
            assert stores[0].out() == [out(2, 10)]

    def test_repeated_mixing_has_its_closed_form(self) -> None:
        alpha, rng = 0.7, np.random.default_rng(1)
        pushed = [rng.normal(size=3).astype(np.float32) for _ in range(20)]
        with self.begun() as stores:
            for number, values in enumerate(pushed):
                answer = stores[number % 2].assimilate(push(number, values, based_on=number))
                assert (answer.verdict, answer.version, answer.staleness) == (Verdict.TAKEN, number + 1, 0)
            n = len(pushed)
            expected = alpha**n * FIRST.astype(np.float64)
            for j, values in enumerate(pushed, start=1):
                expected += (1 - alpha) * alpha ** (n - j) * values
            np.testing.assert_allclose(now(stores[0]).values, expected, rtol=1e-5, atol=1e-6)

    def test_what_has_not_changed_is_not_read_again(self) -> None:
        with self.begun() as stores:
            assert stores[0].read(known=0) is None
            stores[0].assimilate(push(0, FIRST))
            newer = stores[1].read(known=0)
            assert newer is not None
            assert newer.version == 1

    def test_the_same_push_counts_once_and_hears_so(self) -> None:
        with self.begun() as stores:
            stores[0].assimilate(push(0, FIRST + 1))
            before = now(stores[0])
            answer = stores[1].assimilate(push(0, FIRST + 1))
            assert (answer.verdict, answer.version) == (Verdict.AGAIN, 1)
            np.testing.assert_array_equal(now(stores[1]).values, before.values)

    def test_a_unit_that_was_done_under_another_lease_counts_once(self) -> None:
        with self.begun() as stores:
            stores[0].assimilate(push(0, FIRST + 1))
            answer = stores[1].assimilate(push(0, FIRST + 5, lease="issued again"))
            assert (answer.verdict, answer.version) == (Verdict.DONE, 1)
            assert stores[1].done(1) == {0: "lease 0"}
            assert stores[1].done(2) == {}
            later = stores[1].assimilate(push(0, FIRST, unit=Unit(2, 0), lease="next pass"))
            assert later.verdict == Verdict.TAKEN

    def test_what_is_too_stale_is_refused_and_its_unit_is_still_to_be_done(self) -> None:
        with self.begun() as stores:
            for shard in range(3):
                stores[0].assimilate(push(shard, FIRST))
            answer = stores[1].assimilate(push(7, FIRST, based_on=0, max_staleness=2))
            assert (answer.verdict, answer.version, answer.staleness) == (Verdict.STALE, 3, 3)
            assert 7 not in stores[1].done(1)
            answer = stores[1].assimilate(push(7, FIRST, based_on=1, max_staleness=2))
            assert (answer.verdict, answer.staleness) == (Verdict.TAKEN, 2)

    @pytest.mark.parametrize(
        "wrong",
        [
            push(0, np.ones(4, np.float32)),
            push(0, np.array([1, np.nan, 1], np.float32)),
            push(0, FIRST, alpha=1.5),
            push(0, FIRST, alpha=-0.1),
        ],
    )
    def test_what_cannot_be_mixed_changes_nothing(self, wrong: Push) -> None:
        with self.begun() as stores:
            with pytest.raises((ShapeMismatch, ValueError), match=r"elements|alpha|NaN"):
                stores[0].assimilate(wrong)
            assert now(stores[1]).version == 0
            assert stores[1].done(1) == {}
            assert stores[1].assimilate(push(0, FIRST)).verdict == Verdict.TAKEN

    def race(self, stores: tuple[ParameterStore, ParameterStore], each: int = 50) -> None:
        """Two servers push at once; the sum of all, as far as alpha lets one see it."""

        def work(number: int) -> None:
            for index in range(each):
                stores[number].assimilate(push(2 * index + number, FIRST))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def test_pushes_of_two_servers_at_once_are_all_counted_each_once(self) -> None:
        with self.begun() as stores:
            self.race(stores)
            assert now(stores[0]).version == 100
            assert len(stores[0].done(1)) == 100
