"""Commit records for tests that do not care how they came about."""

from typing import Any

from collab.averaging.agreement import CommitRecord
from collab.types import Lineage, PeerId

X, Y = PeerId("x"), PeerId("y")


def make_record(**fields: Any) -> CommitRecord:
    """One that is sound, with ``fields`` changed."""
    defaults: dict[str, Any] = {
        "round_id": "r",
        "epoch": 0,
        "lineage": Lineage("l"),
        "contributors": ((X, 1.0),),
        "members": (X,),
        "pieces": ((X, 0, 8),),
        "digests": ("d",),
    }
    return CommitRecord(**{**defaults, **fields})
