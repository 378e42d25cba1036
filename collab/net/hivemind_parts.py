"""The parts of hivemind that are used here, loaded without the rest of it.

To import any of them Python first runs the code of the packages around it, and that gathers all of hivemind: averagers,
experts and optimisers, and with them torch and scipy, 1.5 s of processor time. Whoever is asked to take part, or wants
to know a run's status, would wait for what is not needed for that. hivemind has no lighter way in, so its three
packages that gather get a place in ``sys.modules`` where their own modules are found, and their code runs when somebody
asks for a name that is not there: ``import hivemind`` still gives all of it. Nothing of it is changed or left out.
"""

# ruff: noqa: E402 - what is imported at the end finds the packages that are put there before

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

PACKAGES: dict[str, dict[str, str]] = {
    "hivemind": {},
    "hivemind.dht": {},
    "hivemind.utils": {
        "MSGPackSerializer": "serializer", "SerializerBase": "serializer",
        "get_dht_time": "timed_storage", "get_logger": "logging",
    },
}  # fmt: skip
"""Those that gather, the outer ones first; and which of their names come from which of their modules: the parts below
ask their packages for these."""
ABOUT_ITSELF = "__version__"
"""The one name of this form that the code of a package gives; others are asked of any module by whoever looks around,
and are not worth running it."""


class _Gathering(ModuleType):
    """A package whose code runs when a name is asked for that is not there."""

    def __init__(self, spec: ModuleSpec, names: dict[str, str]) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__package__ = spec, spec.loader, spec.name
        self.__file__, self.__path__ = spec.origin, spec.submodule_search_locations or []
        self._names, self._is_run = names, False

    def __getattr__(self, name: str) -> Any:
        if origin := self._names.get(name):
            return getattr(import_module(f"{self.__name__}.{origin}"), name)
        is_no_name_of_its = name.startswith("__") and name != ABOUT_ITSELF
        if not is_no_name_of_its and find_spec(f"{self.__name__}.{name}") is not None:
            return import_module(f"{self.__name__}.{name}")
        loader = self.__spec__.loader if self.__spec__ is not None else None
        if is_no_name_of_its or self._is_run or loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self._is_run = True  # modules of the package may ask it for a name while its code runs
        try:
            loader.exec_module(self)
        except BaseException:
            self._is_run = False
            raise
        return getattr(self, name)


def _put_in_place() -> None:
    """Before anything of hivemind is loaded; where it is loaded already, there is nothing to save."""
    if "hivemind" in sys.modules:
        return
    for name, names in PACKAGES.items():
        spec = find_spec(name)  # raises the error of any missing package when there is none
        if spec is not None:
            sys.modules[name] = _Gathering(spec, names)
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, sys.modules[name])


_put_in_place()

from hivemind.dht import node, protocol, routing, storage
from hivemind.dht.node import DHTNode
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings import control
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerInfo, StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import (
    ControlFailure,
    P2PDaemonError,
    raise_if_failed,
    read_pbmsg_safe,
)
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils import MSGPackSerializer, timed_storage
from hivemind.utils.multiaddr import Multiaddr

__all__ = [
    "P2P", "ControlFailure", "DHTNode", "DHTRecord", "MSGPackSerializer", "Multiaddr", "P2PDaemonError", "PeerID",
    "PeerInfo", "RecordValidatorBase", "StreamInfo", "control", "dht_pb2", "node", "p2pd_pb2", "protocol",
    "raise_if_failed", "read_pbmsg_safe", "routing", "storage", "timed_storage",
]  # fmt: skip
