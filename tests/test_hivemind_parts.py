"""What is loaded before a person has read what taking part means, and that nobody misses anything of hivemind."""

import subprocess
import sys

HEAVY = "torch", "scipy", "transformers", "datasets", "sklearn", "tokenizers", "hivemind.averaging"


def loaded(program: str) -> str:
    """What a fresh process prints."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_until_the_question_nothing_is_loaded_that_only_training_needs() -> None:
    needed = "import sys, peers.cli_join, peers.joining, peers.hub_lookup, peers.wiring, collab.net.startup"
    assert loaded(f"{needed}; print([name for name in {HEAVY!r} if name in sys.modules])") == "[]"


def test_the_parts_belong_to_the_hivemind_that_everybody_gets_whole() -> None:
    program = """
from collab.net.hivemind_parts import DHTNode, MSGPackSerializer, P2P
import hivemind, hivemind.utils.serializer
from hivemind import DHT, DecentralizedAverager, Optimizer
from hivemind.utils import MPFuture, get_logger
assert hivemind.dht.DHTNode is DHTNode and hivemind.p2p.P2P is P2P
assert hivemind.utils.MSGPackSerializer is hivemind.utils.serializer.MSGPackSerializer is MSGPackSerializer
assert not hasattr(hivemind, "no_such_thing") and not hasattr(hivemind.utils, "__all__")
print(hivemind.__version__, hivemind.averaging.DecentralizedAverager is DecentralizedAverager, DHT.__module__)
"""
    version, is_same, origin = loaded(program).split()
    assert version.startswith("1.1.")
    assert (is_same, origin) == ("True", "hivemind.dht.dht")


def test_where_hivemind_is_loaded_already_its_parts_come_from_there() -> None:
    program = "import hivemind; from collab.net.hivemind_parts import P2P\n"
    program += "print(type(hivemind), P2P is hivemind.p2p.P2P)"
    assert loaded(program) == "<class 'module'> True"
