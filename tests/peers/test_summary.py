"""The swarm in a few numbers, some of whose peers may lie."""

import math

import pytest

from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from peers.summary import swarm_loss
from tests.fakes import NOW
from tests.swarm.people import backbone, record


def loss_of(*told: tuple[float, float], max_share: float = 1.0) -> float:
    """Of trainers with these losses and speeds."""
    records: tuple[PeerRecord, ...] = tuple(
        record(person, loss=loss, samples_per_s=speed) for person, (loss, speed) in enumerate(told)
    )
    return swarm_loss(SwarmView((*records, backbone(7)), NOW, max_share=max_share))


def test_the_loss_is_the_mean_by_speed_of_trainers_that_have_one() -> None:
    assert math.isnan(loss_of())
    assert math.isnan(loss_of((math.nan, 5.0)))
    assert loss_of((3.0, 1.0), (2.0, 3.0)) == pytest.approx(2.25)
    assert loss_of((2.5, 400.0), (2.9, 1.0), (2.2, 1.0), (2.4, 1.0), (math.nan, 9.0)) == pytest.approx(2.5, abs=0.01)
    assert loss_of((3.0, 0.0), (2.0, 0.0)) == pytest.approx(2.5), "nobody has said how fast it is"


@pytest.mark.parametrize("lie", [0.0, -1e300, 1e300])
def test_one_that_claims_any_loss_at_any_speed_moves_it_little(lie: float) -> None:
    honest = [(2.50, 4.0), (2.55, 8.0), (2.45, 12.0), (2.52, 30.0)]
    assert loss_of(*honest, (lie, 2.0**53)) == pytest.approx(2.5, abs=0.25)
    assert loss_of(*honest, (lie, 2.0**53), max_share=0.25) == pytest.approx(2.5, abs=0.1)
    assert loss_of((2.0, 1.0), (2.0, 1.0), (lie, 1.0)) == 2.0
