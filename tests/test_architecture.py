"""Who may import whom, how long things are and what they may be called: see docs/architecture.md."""

from pathlib import Path

import pytest

from tests.architecture import (
    HEAVY,
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    STARTS_WITHOUT_TORCH,
    TORCH,
    Module,
    circles,
    empty_names,
    forbidden_imports,
    heavy_starts,
    long_files,
    long_functions,
    parse,
    upward_imports,
)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    files = [path for package in ("collab", "peers") for path in sorted((ROOT / package).rglob("*.py"))]
    return parse({".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text("utf-8") for path in files})


def test_imports_go_down_or_stay_in_their_layer(modules: dict[str, Module]) -> None:
    assert upward_imports(modules) == []


def test_no_modules_import_each_other_in_a_circle(modules: dict[str, Module]) -> None:
    assert circles(modules) == []


def test_the_library_never_imports_the_roles(modules: dict[str, Module]) -> None:
    assert forbidden_imports(modules, room="collab", forbidden=("peers",)) == []


def test_strategies_import_no_net_and_no_codec(modules: dict[str, Module]) -> None:
    forbidden = ("collab.net", "collab.compression", "asyncio", "socket")
    assert forbidden_imports(modules, room="collab.strategies", forbidden=forbidden) == []


def test_hivemind_is_imported_in_parts_and_under_collab_net_only(modules: dict[str, Module]) -> None:
    elsewhere = {name: module for name, module in modules.items() if name != "collab.net.hivemind_parts"}
    assert forbidden_imports(elsewhere, room="collab", forbidden=("hivemind",)) == []
    assert forbidden_imports(elsewhere, room="peers", forbidden=("hivemind",)) == []


def test_nothing_is_unpickled(modules: dict[str, Module]) -> None:
    for room in ("collab", "peers"):
        assert forbidden_imports(modules, room=room, forbidden=("pickle", "marshal", "shelve", "dill")) == []
    texts = [path.read_text("utf-8") for room in ("collab", "peers") for path in (ROOT / room).rglob("*.py")]
    assert not [text for text in texts if "torch.load(" in text or "allow_pickle=True" in text]


def test_pure_modules_ports_rounds_swarm_network_and_checkpoints_start_without_torch(
    modules: dict[str, Module],
) -> None:
    assert heavy_starts(modules, rooms=STARTS_WITHOUT_TORCH, heavy=TORCH) == []


def test_the_command_line_loads_nothing_heavy_before_a_command_runs(modules: dict[str, Module]) -> None:
    assert "peers.cli" in modules
    assert heavy_starts(modules, rooms=("peers.cli",), heavy=HEAVY) == []


def test_every_folder_with_source_is_a_package(modules: dict[str, Module]) -> None:
    folders = {name.rpartition(".")[0] for name in modules}
    assert sorted(folder for folder in folders if f"{folder}.__init__" not in modules) == []


def test_files_stay_under_300_lines_and_functions_under_60(modules: dict[str, Module]) -> None:
    assert long_files(modules) == []
    assert [function for module in modules.values() for function in long_functions(module)] == []


def test_no_module_or_class_has_a_name_that_says_nothing(modules: dict[str, Module]) -> None:
    assert [name for module in modules.values() for name in empty_names(module)] == []


# -- the checker itself: each rule finds a file that breaks it --------------------------------------------------------


def test_an_import_upwards_is_found_wherever_it_stands() -> None:
    lazy = "def f() -> None:\n    from collab.training.replica import Replica\n"
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from collab.training import replica\n"
    for source in (lazy, typing, "import collab.training.replica", "from collab.training import replica"):
        modules = parse({"collab.averaging.round": source, "collab.training.replica": ""})
        assert upward_imports(modules) == ["collab.averaging.round -> collab.training.replica"], source
    assert upward_imports(parse({"collab.averaging.round": "", "collab.training.replica": lazy})) == []


def test_a_module_nobody_placed_a_missing_one_and_a_relative_import_are_found() -> None:
    assert upward_imports(parse({"collab.new_room.thing": ""})) == ["collab.new_room.thing is in no room of LAYERS"]
    assert upward_imports(parse({"peers.cli": "import collab.gone"})) == [
        "peers.cli -> collab.gone, which does not exist"
    ]
    assert upward_imports(parse({"peers.cli": "from . import screen"})) == ["peers.cli imports relatively"]


def test_a_pure_module_may_not_import_its_own_room() -> None:
    modules = parse({"collab.averaging.plan": "from collab.averaging.round import Round", "collab.averaging.round": ""})
    assert upward_imports(modules) == ["collab.averaging.plan -> collab.averaging.round"]


def test_a_forbidden_import_is_found_when_it_is_lazy_or_by_name() -> None:
    for source in ("import hivemind", "def f():\n    from hivemind.p2p import P2P", "import_module('hivemind.dht')"):
        found = forbidden_imports(parse({"collab.swarm.x": source}), room="collab", forbidden=("hivemind",))
        assert len(found) == 1, source
    innocent = parse({"collab.swarm.x": "import hivemindful"})
    assert forbidden_imports(innocent, room="collab", forbidden=("hivemind",)) == []


def test_a_circle_is_found_unless_one_import_waits_for_a_call() -> None:
    sources = {"collab.swarm.a": "import collab.swarm.b", "collab.swarm.b": "from collab.swarm.a import x"}
    assert set(circles(parse(sources))) == set(sources)
    sources["collab.swarm.b"] = "def f():\n    from collab.swarm.a import x"
    assert circles(parse(sources)) == []


def test_torch_is_found_behind_other_modules_and_packages_but_not_in_a_function() -> None:
    sources = {
        "collab.__init__": "",
        "collab.swarm.__init__": "from collab.swarm import b",
        "collab.swarm.a": "import json",
        "collab.swarm.b": "import torch.nn",
    }
    found = heavy_starts(parse(sources), rooms=("collab.swarm.a",), heavy=TORCH)
    assert found == ["collab.swarm.a: collab.swarm.b imports torch.nn"]
    sources["collab.swarm.b"] = "def f():\n    import torch.nn\n"
    assert heavy_starts(parse(sources), rooms=("collab.swarm.a",), heavy=TORCH) == []


def test_a_long_file_a_long_function_and_an_empty_name_are_found() -> None:
    assert long_files(parse({"collab.x": "\n" * MAX_FILE_LINES})) == []
    assert long_files(parse({"collab.x": "\n" * (MAX_FILE_LINES + 1)})) == ["collab.x: 301 lines"]

    def function(lines: int) -> Module:
        return parse({"collab.x": "def f():\n" + "    pass\n" * (lines - 1)})["collab.x"]

    assert long_functions(function(MAX_FUNCTION_LINES)) == []
    assert long_functions(function(MAX_FUNCTION_LINES + 1)) == ["collab.x.f: 61 lines"]
    assert empty_names(parse({"collab.net_utils": "class RoundManager: ..."})["collab.net_utils"]) == [
        "collab.net_utils: collab.net_utils", "collab.net_utils: RoundManager",
    ]  # fmt: skip
    assert empty_names(parse({"collab.commons": "class Futile: ..."})["collab.commons"]) == []
