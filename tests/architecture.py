"""Reads what the source imports, and says what breaks the rules of docs/architecture.md.

Every module belongs to the room with the longest matching name in ``LAYERS``. Imports go down or stay in the layer, and
no modules import each other in a circle.
"""

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

PURE, PORTS, SERVICES, STRATEGIES, LEARNING, ADAPTERS, FRONT, PEERS = range(8)
LAYERS = {
    "collab.types": PURE,
    "collab.version": PURE,
    "collab.errors": PURE,
    "collab.config": PURE,
    "collab.sections": PURE,
    "collab.section_text": PURE,
    "collab.yaml_text": PURE,
    "collab.foreign": PURE,
    "collab.concurrency": PURE,
    "collab.answers": PURE,
    "collab.newest": PURE,
    "collab.statuses": PURE,
    "collab.lately": PURE,
    "collab.compression": PURE,
    "collab.fleet_cost": PURE,
    "collab.net.wire": PURE,
    "collab.metrics.records": PURE,
    "collab.metrics.guest_records": PURE,
    "collab.metrics.backbone_events": PURE,
    "collab.averaging.plan": PURE,
    "collab.averaging.agreement": PURE,
    "collab.averaging.ballots": PURE,
    "collab.averaging.shares": PURE,
    "collab.averaging.contribution_plan": PURE,
    "collab.averaging.contributions": PURE,
    "collab.averaging.robust": PURE,
    "collab.averaging.weighted_order": PURE,
    "collab.training.schedule": PURE,
    "collab.ports": PORTS,
    "collab.clock": PORTS,
    "collab.compute": PORTS,
    "collab.durable": PORTS,
    "collab.database": PORTS,
    "collab.net.base": PORTS,
    "collab.net.buckets": PURE,
    "collab.net.errands": PORTS,
    "collab.net.lookups": PORTS,
    "collab.net.pieces": PORTS,
    "collab.averaging": SERVICES,
    "collab.swarm": SERVICES,
    "collab.data": SERVICES,
    "collab.strategies": STRATEGIES,
    "collab.training": LEARNING,
    "collab.tasks": LEARNING,
    "collab.checkpoints": LEARNING,
    "collab.metrics": LEARNING,
    "collab.net": ADAPTERS,
    "collab.simulation": ADAPTERS,
    "collab.joining": FRONT,
    "collab.__init__": FRONT,
    "peers": PEERS,
}

STARTS_WITHOUT_TORCH = (
    *(room for room, layer in LAYERS.items() if layer <= PORTS),
    "collab.averaging", "collab.swarm", "collab.net", "collab.checkpoints.local", "peers.cli",
)  # fmt: skip
TORCH = {"torch", "transformers", "bitsandbytes", "safetensors.torch"}
HEAVY = TORCH | {"hivemind", "datasets", "tokenizers", "safetensors", "sklearn", "scipy", "numpy", "pydantic"}

BANNED_WORDS = {"util", "utils", "helper", "helpers", "common", "manager", "managers"}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


@dataclass(frozen=True)
class Import:
    """One imported name: a module, or a module and what is taken from it."""

    target: str
    is_at_import_time: bool


@dataclass(frozen=True)
class Module:
    """One source file."""

    name: str
    source: str
    imports: tuple[Import, ...]


def layer_of(name: str) -> int | None:
    """Layer of the room with the longest name that holds ``name``; None: no room knows it."""
    rooms = [room for room in LAYERS if is_in(name, room)]
    return LAYERS[max(rooms, key=len)] if rooms else None


def is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def imports_of(tree: ast.AST, *, at_import_time: bool = True) -> Iterator[Import]:
    """Everything that a module imports, wherever the import stands."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, at_import_time) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from (Import(f"{origin}.{alias.name}", at_import_time) for alias in node.names)
        elif isinstance(node, ast.Call) and re.search(r"\b(import_module|__import__)$", ast.unparse(node.func)):
            yield from (Import(str(ast.literal_eval(name)), at_import_time) for name in node.args[:1] if is_text(name))
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from (replace(found, is_at_import_time=False) for found in imports_of(ast.Module(node.body, [])))
            yield from imports_of(ast.Module(node.orelse, []), at_import_time=at_import_time)
        else:
            is_later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(node, at_import_time=at_import_time and not is_later)


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def parse(sources: Mapping[str, str]) -> dict[str, Module]:
    """Modules by name; a package's own name is ``package.__init__``. Imported names become modules where they are."""
    parsed = {}
    for name, source in sources.items():
        found = tuple(replace(item, target=module_of(item.target, sources)) for item in imports_of(ast.parse(source)))
        parsed[name] = Module(name, source, found)
    return parsed


def module_of(target: str, sources: Mapping[str, str]) -> str:
    """The module behind an imported name: the name itself, or what it is taken from."""
    origin = target.rpartition(".")[0]
    for candidate in (target, f"{target}.__init__", origin, f"{origin}.__init__"):
        if candidate in sources:
            return candidate
    return target


def upward_imports(modules: Mapping[str, Module]) -> list[str]:
    """Imports that go up, from an unknown room, to a module that is not there, or relative ones."""
    wrong = []
    for module in modules.values():
        layer = layer_of(module.name)
        if layer is None:
            wrong.append(f"{module.name} is in no room of LAYERS")
            continue
        for item in module.imports:
            target = layer_of(item.target)
            if item.target.startswith("."):
                wrong.append(f"{module.name} imports relatively")
            elif is_in(item.target, "collab") or is_in(item.target, "peers"):
                if item.target not in modules:
                    wrong.append(f"{module.name} -> {item.target}, which does not exist")
                elif target is None or target > layer:
                    wrong.append(f"{module.name} -> {item.target}")
    return wrong


def forbidden_imports(modules: Mapping[str, Module], *, room: str, forbidden: tuple[str, ...]) -> list[str]:
    """Direct imports from ``room`` into ``forbidden`` rooms, lazy ones too."""
    return [
        f"{module.name} -> {item.target}"
        for module in modules.values()
        if is_in(module.name, room)
        for item in module.imports
        if any(is_in(item.target, name) for name in forbidden)
    ]


def loaded_at_start(modules: Mapping[str, Module], start: str) -> dict[str, str]:
    """Everything that ``import start`` loads, and who asked for it first; packages on the way included."""
    asked_by, waiting = {start: start}, [start]
    while waiting:
        current = waiting.pop()
        parts = current.split(".")
        packages = [".".join([*parts[:end], "__init__"]) for end in range(1, len(parts))]
        wanted = [package for package in packages if package in modules]
        if current in modules:
            wanted += [item.target for item in modules[current].imports if item.is_at_import_time]
        for target in wanted:
            if target not in asked_by:
                asked_by[target] = current
                waiting.append(target)
    return asked_by


def heavy_starts(modules: Mapping[str, Module], *, rooms: tuple[str, ...], heavy: set[str]) -> list[str]:
    """Modules in ``rooms`` whose import loads a library of ``heavy``, with the module that asks for it."""
    return [
        f"{name}: {asked_by} imports {target}"
        for name in modules
        if any(is_in(name, room) for room in rooms)
        for target, asked_by in loaded_at_start(modules, name).items()
        if any(is_in(target, library) for library in heavy)
    ]


def long_files(modules: Mapping[str, Module]) -> list[str]:
    lengths = {name: len(module.source.splitlines()) for name, module in modules.items()}
    return [f"{name}: {lines} lines" for name, lines in lengths.items() if lines > MAX_FILE_LINES]


def long_functions(module: Module) -> list[str]:
    return [
        f"{module.name}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(module.source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]


def empty_names(module: Module) -> list[str]:
    """Module and class names with a word that says nothing."""
    classes = [node.name for node in ast.walk(ast.parse(module.source)) if isinstance(node, ast.ClassDef)]
    return [
        f"{module.name}: {name}"
        for name in (module.name, *classes)
        if BANNED_WORDS & {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)}
    ]


def circles(modules: Mapping[str, Module]) -> list[str]:
    """The first circle of imports that happen at import time."""
    graph = {
        name: {item.target for item in module.imports if item.is_at_import_time} for name, module in modules.items()
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []
