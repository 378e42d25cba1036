"""Swarm time for hivemind's DHT.

hivemind reads its clock through a module-level name that several of its modules import by value. A peer whose machine
is off by minutes would have every record refused, so the name is replaced in each module that holds it. This is the
only process-wide state of the network layer: peers that share a process share its clock.
"""

from collections.abc import Callable

from collab.net.hivemind_parts import node, protocol, routing, storage, timed_storage

MODULES = (node, protocol, routing, storage, timed_storage)


def use(now: Callable[[], float]) -> None:
    """Let the DHT read swarm time from ``now``, in seconds since the Unix epoch."""
    for module in MODULES:
        if hasattr(module, "get_dht_time"):
            module.get_dht_time = now
