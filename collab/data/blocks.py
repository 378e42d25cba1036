"""A pass over the data, cut into blocks of samples: the same cut, in the same order, on every peer with this data."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_BLOCKS = 4096
"""Of one pass: what has been trained fits into half a kilobyte."""
PAGE_BLOCKS = 16
"""Of one page, which is one key of the directory: no more than one trainer works on for some claims, since whoever
claims on a page reads what all have said of it."""
MAX_SHARDS = 1 << 16
SHARD_SAMPLES, MIN_SHARD_SAMPLES = 8192, 64
"""Of a streamed shard, for how long it may be held, and for what shows that somebody has trained it. Shards are of very
different sizes, and all peers must reckon alike."""
_WHOLE_SAMPLES = 1 << 17
"""A pass of up to so many samples is put into order as a whole, in some milliseconds."""
_SAMPLES, _SHARDS = "samples", "shards"
_ROUNDS = 6
"""Of the Feistel network: four are enough to look random, two more cost nothing."""

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class BlockId:
    """One block of one pass."""

    pass_number: int
    block: int

    @property
    def page(self) -> int:
        """The page that it is on."""
        return self.block // PAGE_BLOCKS

    @property
    def bit(self) -> int:
        """Its bit in what is said of the page."""
        return 1 << self.block % PAGE_BLOCKS


@dataclass(frozen=True, kw_only=True)
class BlockPlan:
    """How a pass is cut. Peers whose plans differ in anything have nothing to do with each other's blocks."""

    data: str
    """Which samples the ids mean, and how many there are: ``samples.1500.<digest>``, or ``shards.20.<digest>``."""
    seed: int
    num_blocks: int
    block_samples: int
    """Of each block but the last; of the shards of a streamed dataset it is what they have on average."""
    num_samples: int | None
    """None: a streamed dataset, each shard of which is a block of as many samples as it happens to have."""

    @classmethod
    def of(cls, num_samples: int, *, digest: str, seed: int, microbatch_size: int) -> "BlockPlan":
        """Cut samples into blocks of whole microbatches, as small as ``MAX_BLOCKS`` allows.

        Args:
            digest: of the samples, 32 hex digits.
            microbatch_size: of the run; a peer's own may be another.
        """
        if num_samples < 1 or microbatch_size < 1:
            raise ValueError(f"{num_samples} samples in microbatches of {microbatch_size} make no blocks")
        microbatches = -(-num_samples // microbatch_size)
        block_samples = microbatch_size * -(-microbatches // MAX_BLOCKS)
        num_blocks = -(-num_samples // block_samples)
        data = f"{_SAMPLES}.{num_samples}.{digest}"
        return cls(data=data, seed=seed, num_blocks=num_blocks, block_samples=block_samples, num_samples=num_samples)

    @classmethod
    def of_shards(cls, num_shards: int, *, digest: str, seed: int) -> "BlockPlan":
        """Each shard of a streamed dataset is a block; how many samples it has is not known before it is read."""
        if not 0 < num_shards <= MAX_SHARDS:
            raise ValueError(f"{num_shards} shards; expected 1 to {MAX_SHARDS}")
        data = f"{_SHARDS}.{num_shards}.{digest}"
        return cls(data=data, seed=seed, num_blocks=num_shards, block_samples=SHARD_SAMPLES, num_samples=None)

    @classmethod
    def read(cls, data: str, *, seed: int, microbatch_size: int) -> "BlockPlan":
        """The plan for data of which only the name is known, from another peer.

        Raises:
            ValueError: it names no data.
        """
        kind, _, rest = data.partition(".")
        number, _, digest = rest.partition(".")
        if kind not in (_SAMPLES, _SHARDS) or not number.isdecimal() or len(number) > 15 or len(digest) != 32:
            raise ValueError(f"{data!r:.80} names no data")
        if kind == _SHARDS:
            return cls.of_shards(int(number), digest=digest, seed=seed)
        return cls.of(int(number), digest=digest, seed=seed, microbatch_size=microbatch_size)

    @property
    def page_blocks(self) -> int:
        """Blocks of each page but the last."""
        return PAGE_BLOCKS

    @property
    def num_pages(self) -> int:
        """Keys of the directory that a pass needs."""
        return -(-self.num_blocks // PAGE_BLOCKS)

    def full_page(self, page: int) -> int:
        """Bits of all blocks on ``page``."""
        return (1 << min(PAGE_BLOCKS, self.num_blocks - page * PAGE_BLOCKS)) - 1

    def samples_in(self, block: int) -> int:
        """Samples of a block, as far as it is known."""
        if self.num_samples is None:
            return self.block_samples
        return min(self.block_samples, self.num_samples - block * self.block_samples)

    def proof_samples(self, block: int) -> int:
        """Samples of a block that its trainer must have brought into rounds, so that its word is believed."""
        return MIN_SHARD_SAMPLES if self.num_samples is None else self.samples_in(block)

    def sample_ids(self, block: BlockId) -> tuple[int, ...]:
        """Ids of the block's samples, in the order of its pass.

        Raises:
            ValueError: the data is streamed; a shard's samples are known when it has been read.
        """
        if self.num_samples is None:
            raise ValueError("the samples of a streamed shard are known when it has been read")
        start = block.block * self.block_samples
        stop, keys = start + self.samples_in(block.block), self._keys(block.pass_number)
        if self.num_samples <= _WHOLE_SAMPLES:
            return tuple(_whole_order(self.num_samples, keys.tobytes())[start:stop].tolist())
        return tuple(permuted(np.arange(start, stop, dtype=np.uint64), self.num_samples, keys).tolist())

    def _keys(self, pass_number: int) -> Words:
        """Of a pass. Peers must agree, so they follow from nothing but the run's seed, the data and the pass."""
        text = f"collab/pass/1:{self.seed}:{self.data}:{pass_number}"
        return np.frombuffer(hashlib.sha512(text.encode()).digest()[: 8 * _ROUNDS], dtype="<u8").astype(np.uint64)

    @cached_property
    def block_words(self) -> Words:
        """[num_blocks] a word of 64 bits for each block, for the assignment."""
        return mixed(np.arange(self.num_blocks, dtype=np.uint64) + word_of(f"{self.seed}:{self.data}"))


def blocks_in(bits: int, page: int) -> Iterator[int]:
    """Numbers of the blocks whose bits are set in what is said of ``page``, in order."""
    while bits:
        lowest = bits & -bits
        yield page * PAGE_BLOCKS + lowest.bit_length() - 1
        bits ^= lowest


def permuted(positions: Words, size: int, keys: Words) -> NDArray[np.int64]:
    """Where a permutation of ``range(size)`` takes ``positions``: any part of it, without making the whole.

    numpy's own permutations may differ between its releases, and peers have different ones. This one is a Feistel
    network over the next even power of two; what falls outside goes through it again until it falls inside.

    Args:
        positions: [any] each below ``size``.
        keys: [rounds] uint64.

    Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (CT-RSA 2002), the generalised Feistel method
    with cycle walking.
    """
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    found = _network(positions, keys, half, mask)
    while (outside := found >= np.uint64(size)).any():
        found[outside] = _network(found[outside], keys, half, mask)
    return found.astype(np.int64)


@lru_cache(maxsize=4)
def _whole_order(size: int, keys: bytes) -> NDArray[np.int64]:
    """[size] all of a short pass at once: its blocks are short, too, and one by one would take longer."""
    return permuted(np.arange(size, dtype=np.uint64), size, np.frombuffer(keys, dtype=np.uint64))


def _network(values: Words, keys: Words, half: np.uint64, mask: np.uint64) -> Words:
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (mixed(right + key) & mask)
    return (left << half) | right


def mixed(values: Words) -> Words:
    """[any] words whose every bit depends on all bits of the given ones.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def word_of(text: str) -> np.uint64:
    """A word of 64 bits that stands for ``text``."""
    return np.uint64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))
