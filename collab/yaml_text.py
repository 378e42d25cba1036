"""YAML as people mean it."""

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Plain YAML without what surprises: a repeated field, and aliases, which a few bytes can make grow for ever."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a run file has no aliases")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # the checks below will say that it is no name of a field
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"field {key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_yaml(text: str) -> Any:
    """Plain values of a text.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is no YAML, or has one of the above.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
