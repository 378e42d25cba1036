"""What of one snapshot is here, what is missing, and who brings which chunk of it. Pure bookkeeping."""

from collections import deque

import numpy as np

from collab.errors import BadMessage
from collab.net.pieces import PIECE_BYTES
from collab.swarm.snapshots import CHUNK_BYTES, Manifest, PackedSnapshot, check_chunk
from collab.types import PeerId

AT_ONCE = 3
"""Chunks that a donor is asked for ahead of what it has brought: its uplink never waits for our next question."""


class Download:
    """Chunks go to whoever asks for the next one, so that each donor brings as much as its link allows."""

    def __init__(self, manifest: Manifest) -> None:
        """
        Raises:
            BadMessage: it is more than there can be memory for.
        """
        self.manifest = manifest
        try:
            self._data = np.zeros(manifest.num_bytes, np.uint8).data  # takes memory where something is written
        except MemoryError as error:
            raise BadMessage(f"a state of {manifest.num_bytes} bytes is more than this machine can hold") from error
        self._missing = deque(range(len(manifest.chunk_digests)))
        self._asked: dict[int, list[PeerId]] = {}
        """Chunks under way, and from whom."""
        self._parts: dict[tuple[PeerId, int], bytearray] = {}
        """What has come of chunks that are under way; pieces of two donors are never mixed."""
        self.brought_bytes: dict[PeerId, int] = {}
        """What of the snapshot each donor has brought."""
        self.here_bytes = 0
        """In whole chunks."""

    @property
    def is_complete(self) -> bool:
        """Whether all chunks are here."""
        return not self._missing and not self._asked

    def next_for(self, donor: PeerId) -> int | None:
        """What to ask ``donor`` for now; None: nothing, since it has enough to do, or nothing is left.

        When all is asked for, whoever is idle is asked for what others have not brought yet: the slowest donor does not
        hold up the end.
        """
        its_own = [index for index, donors in self._asked.items() if donor in donors]
        if len(its_own) >= AT_ONCE:
            return None
        if self._missing:
            index = self._missing.popleft()
            self._asked[index] = []
        elif not its_own and (others := [index for index in self._asked if len(self._asked[index]) == 1]):
            index = others[-1]  # asked for last, so it is here last
        else:
            return None
        self._asked[index].append(donor)
        return index

    def waits_for(self, donor: PeerId) -> bool:
        """Whether ``donor`` was asked for something that it has not brought."""
        return any(donor in donors for donors in self._asked.values())

    def take(self, donor: PeerId, index: int, start: int, piece: memoryview) -> bool:
        """A piece of a chunk; whether the chunk is here with it.

        Raises:
            BadMessage: it is not what comes next of a chunk that was asked for.
            CorruptState: the chunk is whole and not what the manifest promises.
        """
        if donor not in self._asked.get(index, ()):
            if self._is_here(index):
                return False  # another donor was faster
            raise BadMessage(f"{donor} brings chunk {index}, for which it was not asked")
        part = self._parts.setdefault((donor, index), bytearray())
        size = self.manifest.chunk_bytes(index)
        if start != len(part) or piece.nbytes != min(PIECE_BYTES, size - start):
            raise BadMessage(f"{donor} brings {piece.nbytes} bytes from {start} of chunk {index}, not what is next")
        part += piece
        if len(part) < size:
            return False
        check_chunk(self.manifest, index, part)
        self._data[index * CHUNK_BYTES : index * CHUNK_BYTES + size] = part
        for each in self._asked.pop(index):
            self._parts.pop((each, index), None)
        self.brought_bytes[donor] = self.brought_bytes.get(donor, 0) + size
        self.here_bytes += size
        return True

    def give_up(self, donor: PeerId) -> None:
        """Nothing more comes from ``donor``: what it was asked for is missing again."""
        for index, donors in list(self._asked.items()):
            if donor in donors:
                donors.remove(donor)
                self._parts.pop((donor, index), None)
                if not donors:
                    del self._asked[index]
                    self._missing.appendleft(index)

    def restore(self, index: int, chunk: bytes) -> None:
        """A chunk that was here before, and has been found to be what the manifest promises."""
        self._missing.remove(index)
        self.here_bytes += len(chunk)
        self._data[index * CHUNK_BYTES : index * CHUNK_BYTES + len(chunk)] = chunk

    def chunk(self, index: int) -> memoryview:
        """Of what is here."""
        return self._data[index * CHUNK_BYTES : index * CHUNK_BYTES + self.manifest.chunk_bytes(index)]

    def packed(self) -> PackedSnapshot:
        """All of it."""
        return PackedSnapshot(self.manifest, self._data.tobytes())

    def _is_here(self, index: int) -> bool:
        return 0 <= index < len(self.manifest.chunk_digests) and index not in self._asked and index not in self._missing
