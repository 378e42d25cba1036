"""A state on its way to us, on our own disk: whoever restarts in the middle goes on where it was.

There are no books to keep: a chunk is here when the bytes at its place have its digest.
"""

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from collab.errors import BadMessage, CorruptState
from collab.net.wire import Message
from collab.ports import Compute
from collab.swarm.snapshots import CHUNK_BYTES, Manifest, check_chunk

logger = logging.getLogger(__name__)

MANIFEST_FILE, DATA_FILE = "manifest.json", "data"


class Partial:
    """One download at a time in one directory. A disk that fails costs no more than what it would have saved."""

    def __init__(self, root: Path, compute: Compute) -> None:
        self._root, self._compute = root, compute
        self._manifest: Manifest | None = None
        """Of the download that is kept here."""

    async def manifest(self) -> Manifest | None:
        """Of what was begun and not finished, perhaps in an earlier life."""
        return await self._compute.beside(self._read_manifest)

    async def begin(self, manifest: Manifest) -> Mapping[int, bytes]:
        """Keep what comes of ``manifest``; the chunks of it that are here already. Anything else is deleted."""
        return await self._compute.beside(lambda: self._begin(manifest))

    async def keep(self, index: int, chunk: memoryview) -> None:
        """A chunk of the manifest has come, and is what it should be."""
        await self._compute.beside(lambda: self._write(index, chunk))

    async def remove(self) -> None:
        """All is here, and kept elsewhere."""
        self._manifest = None
        await self._compute.beside(lambda: shutil.rmtree(self._root, ignore_errors=True))

    # -- off the event loop ------------------------------------------------------------------------------------------

    def _read_manifest(self) -> Manifest | None:
        try:
            fields = json.loads((self._root / MANIFEST_FILE).read_bytes())
            return Manifest.from_message(Message("manifest", fields, bytes.fromhex(fields["chunk_digests"])))
        except (OSError, ValueError, KeyError, TypeError, BadMessage):
            return None  # there is none, or it was cut off while it was written

    def _begin(self, manifest: Manifest) -> Mapping[int, bytes]:
        self._manifest = None
        try:
            chunks = self._chunks(manifest) if self._read_manifest() == manifest else {}
            if not chunks:
                shutil.rmtree(self._root, ignore_errors=True)
                self._root.mkdir(parents=True)
                digests = b"".join(manifest.chunk_digests).hex()
                fields = {**manifest.to_message().fields, "chunk_digests": digests}
                (self._root / DATA_FILE).write_bytes(b"")
                (self._root / MANIFEST_FILE).write_text(json.dumps(fields))
        except OSError as error:
            logger.warning("what comes of the state is not kept on the disk: %s", error)
            return {}
        self._manifest = manifest
        return chunks

    def _chunks(self, manifest: Manifest) -> dict[int, bytes]:
        chunks: dict[int, bytes] = {}
        with (self._root / DATA_FILE).open("rb") as file:
            for index in range(len(manifest.chunk_digests)):
                file.seek(index * CHUNK_BYTES)
                chunk = file.read(manifest.chunk_bytes(index))
                try:
                    check_chunk(manifest, index, chunk)
                except CorruptState:
                    continue  # not here yet
                chunks[index] = chunk
        return chunks

    def _write(self, index: int, chunk: memoryview) -> None:
        if self._manifest is None:
            return
        try:
            with (self._root / DATA_FILE).open("r+b") as file:
                file.seek(index * CHUNK_BYTES)
                file.write(chunk)
        except OSError as error:
            logger.warning("what comes of the state is not kept on the disk any more: %s", error)
            self._manifest = None
