"""Options that come as variables: ``COLLAB_BACKBONE_HUB_REPO`` is ``--hub-repo`` of ``collab-peer backbone``."""

import os
from typing import Any

import typer
from typer.core import TyperGroup, TyperOption

PREFIX = "COLLAB"


class CommandsWithVariables(TyperGroup):
    """Names each variable after the option's flag; typer would take the name that it has in the code."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """With its variables."""
        command = super().get_command(ctx, cmd_name)
        for option in _options_of(command) if command is not None else ():
            option.envvar, option.allow_from_autoenv = variable_of(cmd_name, option), False
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """
        Raises:
            BadParameter: a variable is of this command, and no option of it.
        """
        name, command, left = super().resolve_command(ctx, args)
        if name is not None and command is not None:
            known = {option.envvar for option in _options_of(command)}
            for variable in sorted(os.environ):
                if variable.startswith(f"{_prefix_of(name)}_") and variable not in known:
                    text = f"the variable {variable} is no option of 'collab-peer {name}': see its --help, or unset it"
                    raise typer.BadParameter(text)
        return name, command, left


def variable_of(command: str, option: TyperOption) -> str:
    """By the longest of its flags."""
    return f"{_prefix_of(command)}_{_upper(max(option.opts, key=len).removeprefix('--'))}"


def _prefix_of(command: str) -> str:
    return f"{PREFIX}_{_upper(command)}"


def _upper(text: str) -> str:
    return text.upper().replace("-", "_")


def _options_of(command: Any) -> list[TyperOption]:
    return [one for one in command.params if isinstance(one, TyperOption) and one.name != "help"]
