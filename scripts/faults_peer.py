"""One peer of bench_faults.py: a process that takes global steps when it is told to.

Its place is the first argument, as JSON. It reads words from its input, a line each, and answers in JSON lines:

    (start)             ready: an address for others to dial
    enter genesis       entered: it has measured its link, and is where the history begins
    enter newcomer      entered: the same, and is where most of the others are
    look                looked: how many trainers it knows at its own place in the history, and who would lead them
    prepare NUMBER      prepared: the vector of that round is in memory
    step                group: as soon as it has one; event: what went wrong in it; returned: it holds the result
    check               checked: the digest of the result's bytes, and where the history stands
    weigh               weighed: whose vectors the result is made of, by its numbers and by its record

It goes when its input ends, however that comes about.
"""

import sys
import time

import averaging_vectors as vectors
import numpy as np
from averaging_engine import Voice
from averaging_peer import obey, own_voice, words
from faults_mean import makeup
from faults_member import Member, Step
from faults_setup import Place

from collab.averaging.agreement import CommitRecord
from peers.process import configure_logging


class Attendant:
    """Does what the words say."""

    def __init__(self, place: Place, member: Member, voice: Voice) -> None:
        self._place, self._member, self._voice = place, member, voice
        self._number = 0
        self._vector: vectors.Floats = np.empty(0, np.float32)
        self._step: Step | None = None

    def follow(self, word: str, rest: str) -> None:
        """One line of the input."""
        if word == "enter":
            self._member.enter(is_newcomer=rest == "newcomer")
            self._voice.tell("entered")
        elif word == "look":
            trainers, leader = self._member.look()
            epoch, lineage = self._member.history
            self._voice.tell("looked", trainers=trainers, leader=leader, epoch=epoch, lineage=lineage)
        elif word == "prepare":
            self._number, self._step = int(rest), None
            self._vector = vectors.vector(self._place.seed, self._number, self._place.slot, self._place.num_elements)
            self._voice.tell("prepared")
        elif word == "step":
            self._take_step()
        elif word == "check" and self._step is not None:
            epoch, lineage = self._member.history
            digest = vectors.digest(self._step.committed.mean)
            self._voice.tell("checked", digest=digest, epoch=epoch, lineage=lineage)
        elif word == "weigh" and self._step is not None:
            self._weigh(self._step)

    def _take_step(self) -> None:
        called_s = time.monotonic()
        self._step = step = self._member.step(self._vector, vectors.weight(self._place.slot))
        self._voice.tell(
            "returned",
            called_s=called_s,
            contributors=len(step.committed.record.contributors),
            attempts=step.attempts,
            was_late=step.was_late,
            reasons=step.reasons[-3:],
        )

    def _weigh(self, step: Step) -> None:
        """Everybody may be in the mean, the dead too."""
        record, slots = step.committed.record, self._member.slots
        weights = {slot: vectors.weight(slot) for slot in sorted(set(slots.values()))}
        mean = step.committed.mean.astype("float32", copy=False)
        found = makeup(mean, self._place.seed, self._number, weights, vectors.tolerance("none", weights))
        told = {slots[peer]: used_share(record, index) for index, (peer, _) in enumerate(record.contributors)}
        self._voice.tell(
            "weighed",
            explained=found.explained,
            shares={str(slot): share for slot, share in found.shares.items()},
            record={str(slot): told.get(slot, 0.0) for slot in weights},
        )


def used_share(record: CommitRecord, index: int) -> float:
    """Part of the elements that have the data of a contributor in them, as the record says."""
    peer, _ = record.contributors[index]
    return sum(stop - start for start, stop in record.used_of(peer)) / record.num_elements


def main() -> None:
    """Body of the process."""
    voice, lines = own_voice(), words()
    configure_logging("info")
    place = Place.from_json(sys.argv[1])
    member = Member(place, voice)
    voice.tell("ready", contact=member.contact)
    obey(lines, Attendant(place, member, voice).follow, member.leave)


if __name__ == "__main__":
    main()
