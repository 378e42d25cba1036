"""Strategies by the word in the run file."""

from collab import config
from collab.strategies.base import Strategy
from collab.strategies.dedloc import Dedloc
from collab.strategies.solo import Solo


def build_strategy(section: config.Strategy) -> Strategy:
    """The strategy that a run file's section describes."""
    if isinstance(section, config.Solo):
        return Solo(target_batch_size=section.target_batch_size, max_gradient_norm=section.max_gradient_norm)
    return Dedloc(target_batch_size=section.target_batch_size, max_gradient_norm=section.max_gradient_norm)
