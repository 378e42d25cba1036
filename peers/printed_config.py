"""``--print-config``: what a command goes by, and where each value comes from; nothing is started."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from pydantic import BaseModel

from collab.config import Run, load_run

PASSWORD = re.compile(r"(?<=://)[^/?#]*(?=@)|(?<=[?&]password=)[^&#]*")
"""Of a store, as Redis takes it, with an @ in it, too: an address that holds one is not for a screen."""
COMMENT_COLUMN = 48


def config_text(context: typer.Context, run_file: Path | None = None) -> str:
    """YAML with a comment behind each value: ``flag``, the variable's name, ``run file`` or ``default``.

    Args:
        context: of the command, whose options were read.
        run_file: of the run, where the command is given one.

    Raises:
        ConfigError: the run file cannot be used.
    """
    run = load_run(run_file) if run_file is not None else None
    lines = [f"# {context.command_path}: of this machine", "options:"]
    lines += [f"  {line}" for line in _options(context, run)]
    if run is None:
        lines.append("# what all peers of the run agree on comes when it joins: the run.yaml of whoever organises it")
    else:
        lines += [f"# {run_file}: what all peers of the run agree on", "run:"]
        lines += [f"  {line}" for line in _section(run, is_given=True)]
    return "\n".join(lines) + "\n"


def print_config(context: typer.Context, run_file: Path | None = None) -> None:
    """``config_text`` on standard output."""
    sys.stdout.write(config_text(context, run_file))


def _options(context: typer.Context, run: Run | None) -> Iterator[str]:
    for option in context.command.params:
        name = option.name or ""
        if option.param_type_name != "option" or getattr(option, "hidden", False) or name in ("print_config", "help"):
            continue
        value, source = context.params[name], context.get_parameter_source(name)
        origin = {"COMMANDLINE": "flag", "ENVIRONMENT": str(option.envvar)}.get(
            source.name if source is not None else "", "default"
        )
        if name == "hub_repo" and not value and run is not None and run.hub_repo:
            value, origin = run.hub_repo, "run file"
        flag = max(option.opts, key=len).removeprefix("--")
        yield _line(flag, _printable(value), origin)


def _printable(value: Any) -> Any:
    """As plain YAML has it; a password is left out."""
    if isinstance(value, Path):
        return str(value)
    return PASSWORD.sub("[secret]", value) if isinstance(value, str) else value


def _section(section: BaseModel, *, is_given: bool) -> Iterator[str]:
    """A section's fields, each with its own.

    Args:
        is_given: the run file has this section; else all of it is a default.
    """
    for name, value in section.model_dump(mode="json").items():
        is_set = is_given and name in section.model_fields_set
        inner = getattr(section, name)
        if isinstance(inner, BaseModel):
            yield f"{name}:"
            yield from (f"  {line}" for line in _section(inner, is_given=is_set))
        else:
            yield _line(name, value, "run file" if is_set else "default")


def _line(name: str, value: Any, origin: str) -> str:
    # In brackets, since a bare value would end as a document of its own.
    written = yaml.safe_dump([value], default_flow_style=True, width=10**6, allow_unicode=True).strip()[1:-1]
    return f"{f'{name}: {written}':<{COMMENT_COLUMN}} # {origin}"
