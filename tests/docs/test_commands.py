"""Every command that a page tells people to type is one that the program takes."""

import pytest

from tests.docs.commands import Typed, commands_of, complaint, pages

COMMANDS = [typed for page in pages() for typed in commands_of(page)]


def test_the_pages_tell_commands() -> None:
    assert {typed.arguments[0] for typed in COMMANDS} >= {"init", "backbone", "join", "invite", "status", "end"}


@pytest.mark.parametrize("typed", COMMANDS, ids=lambda typed: f"{typed.page}: {typed.line}"[:100])
def test_the_program_takes_what_a_page_says(typed: Typed) -> None:
    assert complaint(typed.arguments) == ""


@pytest.mark.parametrize(
    "arguments",
    [("backbones", "my-run"), ("backbone", "my-run", "--prot", "4000"), ("backbone",), ("join", "IT", "--port", "x")],
)
def test_a_command_that_there_is_not_would_be_seen(arguments: tuple[str, ...]) -> None:
    assert complaint(arguments)
