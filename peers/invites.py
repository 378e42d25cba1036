"""The word that a person was sent. Imports nothing heavy: what is wrong with it is told at once."""

import re
from pathlib import Path

from collab.errors import InviteError
from collab.swarm.invite import ASK_AGAIN, OLDER_PREFIXES, PREFIX, Invite, read_invite

LONGEST_NAME = 255
"""Of a file or a directory, in characters: to look for a longer one is an error."""

FILE_ENDINGS = (".invite", ".txt", ".json", ".yaml")
"""Of files in which an invite is, or is looked for by mistake; no model on the Hub is called like that."""
PATH_BEGINS = re.compile(r"~|/|\.{1,2}/")
SHOWN = 24
"""Characters of what may be a part of an invite: it holds a key, and what is on a screen gets around."""


def is_invite(text: str) -> bool:
    """Whether a text is an invite itself, as far as its looks tell, or at least longer than a file's name can be."""
    return text.startswith(PREFIX) or any(len(name) > LONGEST_NAME for name in text.split("/"))


def is_path(text: str) -> bool:
    """Whether a person means a file or a directory, there or not: neither an invite nor a model on the Hub."""
    if is_invite(text) or "://" in text:
        return False
    has_folders = text.partition("@")[0].count("/") > 1
    return has_folders or bool(PATH_BEGINS.match(text)) or text.endswith(FILE_ENDINGS) or Path(text).exists()


def invite_from(text: str) -> Invite:
    """Of the invite itself, or the file that holds it.

    Raises:
        InviteError: neither.
    """
    return read_invite(pasted(text))


def pasted(text: str) -> str:
    """What the file holds that is named, or the text itself.

    Raises:
        InviteError: the file cannot be read, or what is no file is no invite either.
    """
    if is_path(text):
        return _read(Path(text))
    word = "".join(text.split())
    if len(word) <= LONGEST_NAME and not word.startswith((PREFIX, *OLDER_PREFIXES)):
        problem = f"{word[:SHOWN]!r} is no invite, which begins with {PREFIX!r}, and there is no file of that name"
        raise InviteError(problem, hint=ASK_AGAIN)
    return text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        hint = f"look for it from here, {Path.cwd()}; or paste the invite itself, which begins with {PREFIX!r}"
        raise InviteError(f"there is no file {path}", hint=hint) from None
    except IsADirectoryError:
        hint = f"the owner of the run in it makes one: collab-peer invite {path} --name NAME"
        raise InviteError(f"{path} is a directory, not an invite", hint=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InviteError(f"cannot read the invite from {path}: {error}", hint="name the file that holds it") from error


def first_words(text: str) -> str:
    """What can be said of a run before anything is loaded that could join it.

    Args:
        text: an invite, a file that holds one, or a name on the Hub, of which nothing is known yet.

    Raises:
        InviteError: it is an invite that cannot be used.
    """
    if not is_invite(text) and "/" in text and not is_path(text):
        return f"joining {text}: getting ready ..."
    invite = invite_from(text)
    addresses = f"{len(invite.addresses)} address{'es' if len(invite.addresses) != 1 else ''}"
    owner = f"signed by {invite.owner}" + (", for you alone" if invite.papers is not None else "")
    return f"joining {invite.run_id}: an invite {owner}, with {addresses} of backbones; getting ready ..."
