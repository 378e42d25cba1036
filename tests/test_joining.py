"""The replica around a user's own loop."""

import torch

from collab.config import parse_run
from collab.swarm.bundle import Bundle
from collab.training.own_loop import replica_around

RUN = """\
run_id: joined
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.5}
averaging: {worker_momentum: 0.5}
"""


def test_a_user_s_own_loop_sends_momenta_where_the_run_says_so() -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    ours = replica_around(model, None, Bundle(parse_run(RUN, origin="the test"), {}))
    sent = []
    for epoch, gradient in enumerate([8.0, 4.0]):
        model.weight.grad = torch.full((1, 2), gradient)
        ours.take_gradients((epoch,), None)
        sent.append(ours.hand_over().mean.tolist())
        ours.settle(((0, 2),), f"r{epoch}")
        ours.epoch += 1
    assert sent == [[8.0, 8.0], [6.0, 6.0]]
