"""Where members come to join a round that this peer leads."""

import asyncio
from collections.abc import Callable, Mapping

from collab.averaging.agreement import CommitRecord
from collab.averaging.assembly import Assembly
from collab.averaging.certificates import Certified
from collab.averaging.conduct import SPLIT
from collab.averaging.group import Chair, Leader
from collab.averaging.messages import ROUND_PROTOCOL, Join
from collab.averaging.standing import IDLE_S
from collab.averaging.succession import Succession, keep_waiting
from collab.averaging.verdicts import REMEMBERED_ROUNDS
from collab.net.base import Stream
from collab.net.wire import Message
from collab.types import Lineage, PeerId

FAULTS = {
    *("bad_report", SPLIT, "bad_message", "BadMessage"),
    *("not_finite", "wrong_length", "bad_indices", "twice", "no_such_part", "bad_weight", "not_a_contributor"),
}
"""Why a peer that comes again is refused, when an attempt has failed: it sent what no honest peer sends.

Whoever was silent, or lost its streams, may be back; and one that held other bytes than most (``results_differ``) may
have its reducer to thank for it, or a link, also when it is lost before anybody has judged that.
"""


class Rendezvous:
    """Takes joiners in, one assembly at a time for each epoch and lineage, and leads it to its verdict."""

    def __init__(self, chair: Chair, called: Callable[[PeerId, str], None]) -> None:
        """
        Args:
            called: a peer leads on with the round of this id, and waits for us if our leader is silent.
        """
        self._called = called
        self._transport, self._settings, self._times = chair.ports.transport, chair.settings, chair.timeouts
        self._roster, self._verdicts, self._electors = chair.roster, chair.verdicts, chair.verdicts.electors
        self._leader, self._following = Leader(chair), chair.following
        self._succession = Succession(
            self._transport, self._times, self._leader.silence, self._leader.conduct, self._verdicts.committed
        )
        self._assemblies: dict[tuple[int, Lineage], Assembly] = {}
        self._left_out: dict[tuple[int, Lineage], Mapping[PeerId, str]] = {}
        """Who left an attempt that failed, and for what reason: they are not called again."""

    async def serve(self) -> None:
        """Begin to take joiners in."""
        await self._transport.serve(ROUND_PROTOCOL, self._serve_joiner)

    async def _serve_joiner(self, stream: Stream) -> None:
        """Round after round: a member whose round has committed joins the next one over the same stream."""
        message = await stream.receive(timeout_s=self._times.answer_s())
        while await self._serve_next(stream, message):
            message = await stream.receive(timeout_s=IDLE_S)

    async def _serve_next(self, stream: Stream, message: Message) -> bool:
        if message.kind == "resume":
            return await self._succession.serve(stream, message)
        if message.kind == "leading":
            self._called(stream.remote, message.get("round_id", str))
            await stream.send(Message("heard"), timeout_s=self._times.answer_s())
            return False
        return await self._serve_join(stream, Join.from_message(message))

    async def _serve_join(self, stream: Stream, join: Join) -> bool:
        """One round of one member; whether it can join another one."""
        refusal = self._refusal(stream.remote, join)
        if refusal:
            await stream.send(Message("refused", {"text": refusal}), timeout_s=self._times.answer_s())
            return False
        await stream.send(Message("welcome"), timeout_s=self._times.answer_s())
        pulse = asyncio.create_task(keep_waiting(stream, self._times))
        try:
            return await self._place(stream, join)
        finally:
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)

    async def _place(self, stream: Stream, join: Join) -> bool:
        """Find a joiner its round, and see it through; whether it can join another one over the same stream."""
        key = (join.epoch, join.lineage)
        while (known := await self._superseding(key, stream.remote)) is None:
            assembly = self._assemblies.get(key)
            if assembly is None:
                await self._lead(key, stream, join)
                return True
            if assembly.is_open:
                assembly.add(stream, join)
                await assembly.finished.wait()
                return True
            await assembly.finished.wait()
        text = f"epoch {join.epoch} was committed without {stream.remote}"
        await stream.send(Message("superseded", {"text": text, **known.to_fields()}), timeout_s=self._times.answer_s())
        return True

    async def _lead(self, key: tuple[int, Lineage], stream: Stream, join: Join) -> None:
        """The first joiner's handler leads the round for everybody."""
        assembly = Assembly(join.epoch, join.lineage, left_out=set(self._left_out.get(key, ())))
        self._assemblies[key] = assembly
        assembly.add(stream, join)
        try:
            result = await self._leader.lead(assembly)
        finally:
            del self._assemblies[key]
        if not isinstance(result, CommitRecord):
            self._following.forget_call(key)
        if isinstance(result, CommitRecord) or not result:  # without a quorum everybody gets another chance
            self._left_out.pop(key, None)
            return
        self._left_out[key] = {**self._left_out.get(key, {}), **result}
        if len(self._left_out) > REMEMBERED_ROUNDS:
            del self._left_out[next(iter(self._left_out))]

    async def _superseding(self, key: tuple[int, Lineage], joiner: PeerId) -> Certified | None:
        """The round that the swarm has left (epoch, lineage) behind with, if it has.

        That we remember the round is not enough: when everybody with its result is dead or has lost it, the run goes on
        from before. Records tell who went on, but may be older than the step, so those who should hold it are asked.
        """
        known = self._verdicts.committed(*key)
        expected = await self._roster(*key)
        if known is None and key[0] > 0 and expected.ahead:
            return await self._verdicts.learn_from(expected.whom_to_ask(expected.ahead - {joiner}), *key)
        if known is None:
            return None
        contributors = dict(known.record.contributors)
        if self._transport.peer_id in contributors or expected.ahead:
            return known
        holders = set(contributors) - {joiner, self._transport.peer_id}
        found, silent = await self._verdicts.ask(sorted(holders), *key)
        excused = {peer for peer in silent if self._electors.is_gone(peer, expected)}
        if found is not None or silent - excused:
            return known
        self._verdicts.forget(*key)
        return None

    def _refusal(self, peer: PeerId, join: Join) -> str:
        if join.fingerprint != self._settings.fingerprint:
            return f"your run's fingerprint is {join.fingerprint}, this run's is {self._settings.fingerprint}"
        max_weight = self._settings.max_weight(join.epoch)
        if join.weight > max_weight:
            return f"a weight of {join.weight} samples is over the limit of {max_weight}"
        if join.terms != self._settings.terms.mark_at(join.epoch):
            return f"we do not know the same orders of the organiser about epoch {join.epoch}"
        if self._left_out.get((join.epoch, join.lineage), {}).get(peer) in FAULTS:
            return f"your part made an attempt at epoch {join.epoch} fail; you can take part in the next epoch"
        return ""
