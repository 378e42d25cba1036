"""The few words that every layer shares."""

from enum import StrEnum
from typing import NewType, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collab.lately import kept_lately

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58. It contains the peer's Ed25519 public key."""
LONGEST_ID = 64
"""Characters; the ids of such keys have 52. To decode a long one takes the square of its length: 100,000 take 4 s."""


def one_peer_id(text: str) -> PeerId:
    """The same object for all who say this id: it comes anew with each message, and stays of a stranger in several
    places for hours. (What ``sys.intern`` was given, Python 3.12.0 to 3.12.4 keep for ever.)
    """
    return _known(text) if len(text) <= LONGEST_ID else PeerId(text)


@kept_lately(512)
def _known(text: str) -> PeerId:
    return PeerId(text)


RUN_ID = r"^[a-z0-9][a-z0-9-]{2,39}$"
"""What a run may be called: directories have its name, too."""

Lineage = NewType("Lineage", str)
"""Digest chain of all committed rounds, 64 hex digits; equal lineages mean equal histories."""

Vector: TypeAlias = NDArray[np.float32]
"""[num_elements] float32 on the CPU, in the order fixed by ``collab.training.layout``."""

AnyVector: TypeAlias = NDArray[np.float32] | NDArray[np.float16]
"""[num_elements] in the precision that its owner keeps."""


class Role(StrEnum):
    """What a peer does in the swarm."""

    TRAINER = "trainer"
    """Computes gradients, and reduces unless it is in client mode."""
    AUXILIARY = "auxiliary"
    """Reduces for others, without a vector of its own."""
    BACKBONE = "backbone"
    """Bootstrap, leader of choice, reducer, keeper of state, checkpoints and metrics."""


class Reachability(StrEnum):
    """How others get to a peer that has not called them."""

    DIRECT = "direct"
    """They dial it."""
    HOLE_PUNCHED = "hole-punched"
    """Who cannot be dialled either gets through its router, once a backbone has brought the two together."""
    RELAYED = "relayed"
    """Through a backbone, which passes everything on."""
    CLIENT = "client"
    """Not at all: it dials them, and is heard and called back over the connections that it has made."""
