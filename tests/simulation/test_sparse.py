"""Swarms whose peers send the largest elements only: what is left out comes later, and they learn."""

from pathlib import Path

import pytest

from collab.compression.topk import TopK
from collab.compression.topk_sign import TopKSign
from collab.metrics.records import RoundEnded
from tests.simulation.swarm import SimSwarm


@pytest.mark.parametrize(
    ("strategy", "until", "target", "compression", "kind"),
    [
        ("dedloc", 120, 96, "sparse", TopK),
        ("dts", 30, 96, "sparse", TopK),
        ("diloco, outer_momentum: 0.6", 30, 384, "sparse_both", TopKSign),
    ],
)
def test_a_swarm_with_sparse_vectors_learns_and_ends_with_one_model(
    tmp_path: Path,
    strategy: str,
    until: int,
    target: int,
    compression: str,
    kind: type[TopK] | type[TopKSign],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trainer dies in the middle. Of 9,610 parameters a peer sends some hundreds."""
    encoded: list[int] = []
    encode = kind.encode

    def spy(codec: object, values: object) -> object:
        encoded.append(len(values))  # type: ignore[arg-type]
        return encode(codec, values)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "encode", spy)
    swarm = SimSwarm(
        tmp_path, strategy=strategy, until=until, target=target, compression=compression, hidden=128, every=until
    )
    swarm.add_backbone()
    for _ in range(4):
        swarm.add_trainer()
    swarm.churn.fail_at(peer=4, time_s=14.0)
    with swarm.world:
        swarm.world.run(until_s=300.0)
    survivors = swarm.world.peers[1:4]
    assert {peer.result["epoch"] for peer in survivors} == {until}
    models = {swarm.replicas[peer.index].layout.parameters_vector().tobytes() for peer in survivors}
    assert len(models) == 1
    assert all(event.committed for event in swarm.events(survivors[0], RoundEnded)[-10:])
    assert sum(encoded) > until * 9_610, "everybody's parts are encoded with it, but its own span"
    assert swarm.task.evaluate(swarm.replicas[1].model).accuracy > 0.9
