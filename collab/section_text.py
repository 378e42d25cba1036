"""What a person wrote in a file, as validated sections; every problem in it is named at once."""

from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from collab.errors import ConfigError
from collab.sections import Section
from collab.yaml_text import read_yaml

S = TypeVar("S", bound=Section)


def read_section(kind: type[S], text: str, *, origin: str, where_from: str, where_explained: str) -> S:
    """Validate the text of a file.

    Args:
        text: YAML.
        origin: where it came from, for messages.
        where_from: how to get a file to start from.
        where_explained: what says what every field means.

    Raises:
        ConfigError: not YAML, or a field is unknown, missing, of a wrong type or impossible; every problem is listed.
    """
    try:
        content = read_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number that cannot be
        raise ConfigError(f"{origin} is not YAML: {error}", hint="fix the line named above") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{origin} should be a map of fields, got {type(content).__name__}", hint=where_from)
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        problems = "\n".join(f"  {_place(item['loc'])}: {_problem(item)}" for item in error.errors())
        raise ConfigError(
            f"{origin} cannot be used:\n{problems}", hint=f"fix the fields named above; {where_explained}"
        ) from error


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location) or "the file"


def _problem(item: Any) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown field (misspelt?)"
    got = "" if item["type"] == "missing" else f", got {item['input']!r:.80}"
    return f"{item['msg']}{got}"
