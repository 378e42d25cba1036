"""Strategies by the word in the run file."""

from collections.abc import Collection

from collab import config
from collab.foreign import load_class
from collab.strategies.base import Strategy, Target
from collab.strategies.dedloc import Dedloc
from collab.strategies.diloco import Diloco
from collab.strategies.dts import Dts
from collab.strategies.solo import Solo
from collab.strategies.vc_asgd import VcAsgd


def build_strategy(section: config.Strategy, target: Target, allowed: Collection[str] = ()) -> Strategy:
    """The strategy that a run file's section describes, with the target batch as it is at each epoch.

    Args:
        allowed: modules of others that the owner of this machine has allowed.

    Raises:
        ConfigError: the strategy's module is not allowed, not here, or another one than the run's.
    """
    if isinstance(section, config.ForeignStrategy):
        kind = load_class(section.module, section.sha256, section.class_name, allowed)
        made: Strategy = kind(target=target, **section.options)
        return made
    if isinstance(section, config.Solo):
        return Solo(target=target, max_gradient_norm=section.max_gradient_norm)
    if isinstance(section, config.Dts):
        return Dts(target=target, delay=section.delay)
    if isinstance(section, config.Diloco):
        return Diloco(target=target, delay=section.delay)
    if isinstance(section, config.VcAsgd):
        return VcAsgd()
    return Dedloc(target=target, max_gradient_norm=section.max_gradient_norm, delay=section.delay)
