"""Which blocks of which pass have been trained, and how often: kept, merged, and written down with the ledger."""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collab.data.blocks import BlockId, BlockPlan
from collab.data.ledger import Ledger, accounts_in
from collab.durable import replace_file
from collab.errors import StateError
from collab.metrics.records import DataCovered
from collab.ports import Compute
from collab.swarm.records import MAX_PASS

logger = logging.getLogger(__name__)

KEPT_PASSES, KEPT_PAGES = 4, 512
"""Newest passes: the present one, and those before whose last blocks somebody still holds; more of short ones."""
FORMAT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """How far one pass is."""

    pass_number: int
    blocks: int
    """Of the pass."""
    trained: int
    """Blocks that are in steps."""
    again: int
    """Of these, blocks that were trained more than once: issued again, or trained without a lease."""
    samples: int | None
    """Of the blocks trained; None for a streamed dataset, of which nobody knows what others found in their shards."""
    samples_again: int | None
    """Of the blocks trained more than once."""

    @property
    def share(self) -> float:
        """Of the pass that is done, 0 .. 1."""
        return self.trained / self.blocks


@dataclass(slots=True)
class PassCoverage:
    """Of one pass; lists have a number for each page, with a bit for each of its blocks."""

    trained: list[int]
    again: list[int]
    ours: list[int]
    """Trained by this peer itself."""
    assumed: list[int]
    """Trained, as this peer knew in an earlier life, or most others say: by whom is forgotten."""

    @classmethod
    def empty(cls, num_pages: int) -> "PassCoverage":
        """Nothing is trained."""
        return cls(*([0] * num_pages for _ in range(4)))


@dataclass(slots=True)
class Coverage:
    """What one peer believes of the newest passes over one dataset."""

    plan: BlockPlan
    passes: dict[int, PassCoverage] = field(default_factory=dict)

    def of(self, pass_number: int) -> PassCoverage:
        """What is believed of a pass; the oldest is forgotten when a new one is asked for."""
        known = self.passes.get(pass_number)
        if known is None:
            known = self.passes[pass_number] = PassCoverage.empty(self.plan.num_pages)
            for old in sorted(self.passes)[: -self.most_passes]:
                del self.passes[old]
        return known

    @property
    def most_passes(self) -> int:
        """That are kept."""
        return max(KEPT_PASSES, KEPT_PAGES // self.plan.num_pages)

    def note_ours(self, block: BlockId) -> None:
        """All samples of a block are in steps, and this peer has brought them."""
        known = self.of(block.pass_number)
        self.note(block.pass_number, block.page, block.bit)
        known.ours[block.page] |= block.bit

    def note(self, pass_number: int, page: int, bits: int) -> None:
        """Somebody has trained these blocks; those that were trained before are now trained more than once."""
        known = self.of(pass_number)
        known.again[page] |= known.trained[page] & bits
        known.trained[page] |= bits

    def adopt(self, pass_number: int, trained: list[int], again: list[int]) -> None:
        """What most others believe of a pass."""
        known = self.of(pass_number)
        for page, (once, more) in enumerate(zip(trained, again, strict=True)):
            known.assumed[page] |= once & ~known.trained[page]
            known.trained[page] |= once
            known.again[page] |= more & known.trained[page]

    def is_complete(self, pass_number: int) -> bool:
        """Whether all blocks of a pass are trained."""
        known = self.passes.get(pass_number)
        if known is None:
            return False
        return all(known.trained[page] == self.plan.full_page(page) for page in range(self.plan.num_pages))

    def covered(self, pass_number: int) -> Covered:
        """How far a pass is."""
        known = self.of(pass_number)
        trained, again = (sum(bits.bit_count() for bits in pages) for pages in (known.trained, known.again))
        return Covered(
            pass_number=pass_number,
            blocks=self.plan.num_blocks,
            trained=trained,
            again=again,
            samples=self._samples(known.trained, trained),
            samples_again=self._samples(known.again, again),
        )

    def report(self, pass_number: int, at_s: float, *, unleased_blocks: int = 0) -> DataCovered:
        """How far a pass is, for whoever watches."""
        covered = self.covered(pass_number)
        return DataCovered(
            at_s=at_s,
            data=self.plan.data,
            pass_number=pass_number,
            share=covered.share,
            samples=covered.samples,
            samples_again=covered.samples_again,
            is_complete=self.is_complete(pass_number),
            unleased_blocks=unleased_blocks,
        )

    def _samples(self, pages: list[int], blocks: int) -> int | None:
        """In so many blocks, of which the last of the pass may be shorter; None where nobody knows."""
        if self.plan.num_samples is None:
            return None
        last = BlockId(0, self.plan.num_blocks - 1)
        missing = self.plan.block_samples - self.plan.samples_in(last.block)
        return blocks * self.plan.block_samples - (missing if pages[last.page] & last.bit else 0)

    # -- as plain values ---------------------------------------------------------------------------------------------

    def to_values(self) -> dict[str, Any]:
        """For a file."""
        passes = {
            str(number): {"trained": _hex(known.trained), "again": _hex(known.again), "ours": _hex(known.ours)}
            for number, known in sorted(self.passes.items())
        }
        plan = [self.plan.data, self.plan.num_blocks, self.plan.block_samples]
        return {"format": FORMAT, "plan": plan, "passes": passes}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take over what an earlier life has written.

        Raises:
            StateError: it is of other data, or nothing of ours; nothing was changed.
        """
        plan = [self.plan.data, self.plan.num_blocks, self.plan.block_samples]
        try:
            if values["format"] != FORMAT or values["plan"] != plan:
                raise StateError("it is of other data, or of another version")
            restored = {}
            for number, known in values["passes"].items():
                trained, again, ours = (self._pages(known[name]) for name in ("trained", "again", "ours"))
                restored[_pass_number(number)] = PassCoverage(trained, again, ours, list(trained))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"it is damaged: {error!r:.80}") from error
        self.passes = dict(sorted(restored.items())[-self.most_passes :])

    def _pages(self, texts: Iterable[str]) -> list[int]:
        pages = [int(text, 16) for text in texts]
        if len(pages) != self.plan.num_pages:
            raise ValueError(f"{len(pages)} pages")
        if not all(0 <= bits <= self.plan.full_page(page) for page, bits in enumerate(pages)):
            raise ValueError("blocks that do not exist")
        return pages


def load_coverage(path: Path, coverage: Coverage, ledger: Ledger) -> bool:
    """Take over what is at ``path``; whether there was anything.

    With what was trained goes what rounds have shown beyond that: else who says afterwards what it had trained before
    would pay for it with what it brings then.

    Raises:
        StateError: it cannot be used.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise StateError(f"{path} cannot be read: {error!r:.120}") from error
    if not isinstance(values, dict):
        raise StateError(f"{path} is nothing of ours")
    accounts = accounts_in(values.get("accounts"))
    coverage.restore(values)
    ledger.restore(accounts)
    return True


def save_coverage(path: Path, values: Mapping[str, Any]) -> None:
    """Write values, whole or not at all.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(values).encode())


def _hex(pages: list[int]) -> list[str]:
    return [f"{bits:x}" for bits in pages]


def _pass_number(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_PASS:
        raise ValueError(f"pass {number}")
    return number


async def keep_coverage(compute: Compute, path: Path | None, coverage: Coverage, ledger: Ledger) -> None:
    """Write down what was trained, off the event loop; a disk that does not take it costs a warning. None: nowhere."""
    if path is None:
        return
    values = coverage.to_values() | {"accounts": ledger.to_values()}
    try:
        await compute.beside(lambda: save_coverage(path, values))
    except OSError as error:
        logger.warning("what was trained cannot be written to %s: %s; free some space", path, error)
