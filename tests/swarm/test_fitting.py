"""A state of another model is not taken, and somebody else is asked."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collab.averaging.flow import Links
from collab.errors import CorruptState, NoDonor, ShapeMismatch, StateError
from collab.metrics.records import Notice
from collab.swarm.fitting import Brought, fetch_fitting
from collab.swarm.forms import check_forms, forms_of, header_bytes
from collab.swarm.snapshots import PackedSnapshot, Snapshot, pack
from collab.swarm.state_transfer import Wanted, fetch_state
from collab.types import Lineage, PeerId
from tests.fakes import FakeNetwork, FakeObserver, FakeTransport, make_ports, run
from tests.swarm.test_state_transfer import FIRST, GOOD, LIE, SECOND, VALUES, donate

OURS = forms_of(GOOD)
LIARS = [PeerId(f"liar {number}") for number in range(3)]


def of(name: str = "model.a", dtype: str = "float32", length: int = VALUES.size) -> PackedSnapshot:
    tensors = {name: np.zeros(length, dtype)}
    return pack(Snapshot(epoch=5, lineage=Lineage("l"), tensors=tensors, scalars={}), fingerprint="f")


def read(packed: PackedSnapshot) -> PackedSnapshot:
    check_forms(forms_of(packed), OURS)
    return packed


async def take(transport: FakeTransport, *donors: PeerId) -> tuple[PackedSnapshot, list[str]]:
    """And what people are told."""

    async def fetch(left: list[PeerId], wanted: Wanted) -> Brought:
        links = Links(asyncio.get_running_loop().time)
        return await fetch_state(transport, links, left, fingerprint="f", wanted=wanted)

    observer = FakeObserver()
    ports = replace(make_ports(transport), observer=observer)
    packed, manifest, gave = await fetch_fitting(ports, donors, Wanted(), fetch, read)
    assert manifest == packed.manifest
    assert sum(gave.values()) == manifest.num_bytes
    return packed, [event.text for event in observer.events if isinstance(event, Notice)]


@pytest.mark.parametrize(
    "nonsense",
    [of("model.b"), of(dtype="float64"), of(dtype="int32"), of(length=VALUES.size + 1), of("optimizer.a.exp_avg")],
)
def test_most_donors_give_a_state_of_another_model_and_the_others_are_asked(nonsense: PackedSnapshot) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            for liar in LIARS:
                await donate(network, liar, nonsense)
            await donate(network, FIRST)
            packed, (told, *_) = await take(network.join("me"), *LIARS, FIRST)
            assert packed == GOOD
            assert "is not taken: model." in told

    run(main())


def test_where_nobody_gives_another_one_it_is_said_what_does_not_fit() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            for donor in (FIRST, SECOND):
                await donate(network, donor, of("model.b"))
            with pytest.raises(ShapeMismatch, match=r"model\.a is missing there, F32 \[1500000\] here"):
                await take(network.join("me"), FIRST, SECOND)
            with pytest.raises(NoDonor):
                await take(network.join("I"))

    run(main())


def test_what_is_no_state_at_all_is_not_taken_either() -> None:
    of_another_kind = (b'{"model.a": 3}', b'{"model.a": {"dtype": "F32", "shape": 3}}')
    for header in (b"", b"\xff", b"null", b"[" * 100_000, *of_another_kind):
        with pytest.raises(CorruptState):
            forms_of(replace(GOOD, data=len(header).to_bytes(8, "little") + header))


def test_what_has_the_same_form_is_taken_whatever_its_numbers() -> None:
    check_forms(forms_of(LIE), OURS)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("optimizer.b.exp_avg", np.zeros(VALUES.size, np.float32), "state for b, which this model lacks"),
        ("optimizer.a.exp_avg", np.zeros(3, np.float32), r"exp_avg of a has shape \(3,\)"),
        ("optimizer.b.step", 1, "state for b, which this model lacks"),
        ("optimizer.a.step", [1, 2], r"step of a has shape \(2,\)"),
        ("optimizer.a.step", [[1], [2, 3]], "rows of several lengths"),
        ("model.a", 1, "a scalar has the name of a tensor"),
        ("optimizer.a.exp_avg", np.zeros(VALUES.size, np.float32), ""),
        ("optimizer.a.step", np.zeros((), np.float32), ""),
        ("optimizer.a.step", np.zeros(1, np.float32), ""),
        ("optimizer.a.step", 7, ""),
        ("optimizer.a.absmax1", np.zeros(5, np.float32), ""),
    ],
)
def test_what_an_optimiser_keeps_must_be_of_the_model(name: str, value: Any, text: str) -> None:
    own, is_tensor = {"model.a": VALUES}, isinstance(value, np.ndarray)
    tensors, scalars = (own | {name: value}, {}) if is_tensor else (own, {name: value})
    state = pack(Snapshot(epoch=5, lineage=Lineage("l"), tensors=tensors, scalars=scalars), fingerprint="f")
    with pytest.raises(StateError, match=text) if text else nullcontext():
        check_forms(forms_of(state), OURS)


def test_a_header_that_is_far_longer_than_ours_is_not_read_and_names_are_told_in_part() -> None:
    """Lists within lists take dozens of times their length in memory."""
    nested = b"[" * 50_000 + b"]" * 50_000
    data = len(nested).to_bytes(8, "little") + nested
    endless = replace(GOOD, data=data)
    with pytest.raises(CorruptState, match="has a header of 100000 bytes, where at most"):
        forms_of(endless, 2 * header_bytes(GOOD))
    with pytest.raises(ShapeMismatch) as told:
        check_forms(forms_of(of("model." + 100_000 * "x")), OURS)
    assert len(told.value.message) < 400
