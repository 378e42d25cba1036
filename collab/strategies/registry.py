"""Strategies by the word in the run file."""

from collab import config
from collab.strategies.base import Strategy, Target
from collab.strategies.dedloc import Dedloc
from collab.strategies.solo import Solo


def build_strategy(section: config.Strategy, target: Target) -> Strategy:
    """The strategy that a run file's section describes, with the target batch as it is at each epoch."""
    if isinstance(section, config.Solo):
        return Solo(target=target, max_gradient_norm=section.max_gradient_norm)
    return Dedloc(target=target, max_gradient_norm=section.max_gradient_norm)
