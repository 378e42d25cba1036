"""What a peer of a live test does differently from others: installed in its process before it begins."""

import asyncio
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch

from collab.averaging.calls import NOT_COMING
from collab.clock import SystemClock
from collab.net.base import Stream
from collab.swarm.donation import StateServer
from collab.swarm.lease_keeper import LeaseKeeper
from collab.swarm.membership import Membership
from collab.swarm.progress import SwarmView
from collab.swarm.snapshots import Manifest, PackedSnapshot, Snapshot, pack
from collab.training.participant import Participant
from collab.training.replica import Replica
from collab.training.state_shelf import StateShelf
from collab.training.trainer import Trainer

LEARNING_RATE = 0.5
"""Of runs in which parameters are counted: a step of 1 is exact with it."""


def rest_while_there_is(path: str) -> None:
    """Compute nothing while ``path`` exists; rounds that are due are still taken."""
    ordinary, sign = Trainer._samples_or_news, Path(path)

    async def rested(self: Trainer) -> tuple[int, ...]:
        if sign.exists():  # noqa: ASYNC240  # it takes microseconds
            await asyncio.sleep(0.05)
            return ()
        return await ordinary(self)

    _replace(Trainer, "_samples_or_news", rested)


def compute_slowly(seconds: float, habit: Callable[[], None] | None = None) -> None:
    """Each microbatch takes so much longer, so that a step takes seconds on a fast machine, too: where rounds fill the
    links all the time, newcomers hardly get any state. Then ``habit``, if there is one.
    """
    ordinary = Trainer._samples_or_news

    async def slow(self: Trainer) -> tuple[int, ...]:
        await asyncio.sleep(seconds)
        return await ordinary(self)

    _replace(Trainer, "_samples_or_news", slow)
    if habit is not None:
        habit()


@dataclass(frozen=True)
class _Corrupt:
    """A snapshot of which the last bit of each chunk is wrong."""

    true: PackedSnapshot
    log: Path

    @property
    def manifest(self) -> Manifest:
        return self.true.manifest

    def chunk(self, index: int) -> memoryview:
        chunk = bytearray(self.true.chunk(index))
        chunk[-1] ^= 1
        self.log.touch()
        return memoryview(chunk)


def tell_of_a_crowd(path: str) -> None:
    """Keep in a file how many trainers there are, and how many of them are known by name where most are not."""
    ordinary, sign, new = Membership.look, Path(path), Path(path + ".new")

    async def looked(self: Membership, *, brief: bool = False) -> SwarmView:
        view = await ordinary(self, brief=brief)
        if view.crowd is not None:
            new.write_text(f"{view.crowd.trainers} {len(view.all_trainers())}")  # noqa: ASYNC240  # microseconds
            new.replace(sign)  # noqa: ASYNC240  # whoever reads it meanwhile finds a whole one
        return view

    _replace(Membership, "look", looked)


def corrupt_chunks(path: str, log: str) -> None:
    """Give newcomers wrong chunks; then there is ``log``. Otherwise as ``rest_while_there_is``."""
    ordinary = StateServer._give

    async def corrupt(self: StateServer, stream: Stream, packed: PackedSnapshot) -> None:
        await ordinary(self, stream, cast(PackedSnapshot, _Corrupt(packed, Path(log))))

    _replace(StateServer, "_give", corrupt)
    rest_while_there_is(path)


def lie_about_the_state(log: str) -> None:
    """Give newcomers a model of zeros, with a manifest that is right for it; whoever did so is named in ``log``."""

    def lying(self: Replica, fingerprint: str) -> PackedSnapshot:
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()}\n")
        state = self.snapshot()
        zeros = {name: np.zeros_like(tensor) for name, tensor in state.tensors.items()}
        return pack(replace(state, tensors=zeros), fingerprint=fingerprint)

    _replace(Replica, "packed", lying)


def give_late() -> None:
    """Give newcomers the state a second later than could be: whoever lies is faster."""
    provide = StateShelf.provide

    async def provided(self: StateShelf, epoch: int | None) -> PackedSnapshot | None:
        await asyncio.sleep(1.0)
        return await provide(self, epoch)

    _replace(StateShelf, "provide", provided)


def lie_and_do_nothing_else(log: str) -> None:
    """One of many identities that a liar made: it is a trainer by its word, and contributes nothing."""

    async def nothing(_self: Trainer) -> tuple[int, ...]:
        await asyncio.sleep(0.05)
        return ()

    _replace(Trainer, "_samples_or_news", nothing)
    _replace(Participant, "_attend", lambda _self, _call, _leader: NOT_COMING)
    lie_about_the_state(log)


def never_say_goodbye_to_backbones() -> None:
    """A backbone's last word of its lease takes for ever."""

    async def for_ever(_self: LeaseKeeper) -> None:
        await asyncio.Event().wait()

    _replace(LeaseKeeper, "leave", for_ever)


def live_by_the_clock_in(path: str) -> None:
    """The machine's clock is off by as many seconds as ``path`` says, which changes when somebody sets it."""
    ordinary, shift = time.time, Path(path)

    def told() -> float:
        return ordinary() + float(shift.read_text())

    _replace(time, "time", told)
    defaults = SystemClock.__init__.__kwdefaults__
    assert defaults is not None
    defaults["wall"] = told


def set_clock(path: Path, seconds: float) -> None:
    """As its owner or NTP does."""
    new = path.with_name(path.name + ".new")
    new.write_text(str(seconds))
    new.replace(path)


def count_steps_in_parameters(log: str) -> None:
    """Every parameter is the number of steps; which values a state had that was taken over is written to ``log``."""
    step, load = Replica.step, Replica.load

    def counting(self: Replica, gradient: Any, lineage: Any, terms: str | None = None) -> None:
        if self.epoch == 0:
            with self._changing, torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.zero_()
        step(self, np.full_like(gradient, -1 / LEARNING_RATE), lineage, terms)

    def logging(self: Replica, snapshot: Snapshot) -> None:
        values = sorted({float(value) for tensor in snapshot.tensors.values() for value in np.unique(tensor)})
        with Path(log).open("a") as file:
            file.write(json.dumps({"epoch": snapshot.epoch, "values": values[:10]}) + "\n")
        load(self, snapshot)

    _replace(Replica, "step", counting)
    _replace(Replica, "load", logging)


def _replace(kind: type | ModuleType, name: str, method: Any) -> None:
    """This process lives for one peer, so nothing is put back."""
    setattr(kind, name, method)
