"""The word that a person was sent. Imports nothing heavy: what is wrong with it is told at once."""

from pathlib import Path

from collab.errors import InviteError
from collab.swarm.invite import PREFIX, Invite, read_invite

LONGEST_NAME = 255
"""Of a file or a directory, in characters: to look for a longer one is an error."""


def is_invite(text: str) -> bool:
    """Whether a text is an invite itself, as far as its looks tell, or at least longer than a file's name can be."""
    return text.startswith(PREFIX) or any(len(name) > LONGEST_NAME for name in text.split("/"))


def invite_from(text: str) -> Invite:
    """The invite itself, or the file that holds it.

    Raises:
        InviteError: neither.
    """
    if not is_invite(text) and Path(text).is_file():
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InviteError(f"cannot read the invite from {text}: {error}") from error
    return read_invite(text)


def first_words(text: str) -> str:
    """What can be said of a run before anything is loaded that could join it.

    Args:
        text: an invite, a file that holds one, or a name on the Hub, of which nothing is known yet.

    Raises:
        InviteError: it is an invite that cannot be used.
    """
    if not is_invite(text) and "/" in text and not Path(text).exists():
        return f"joining {text}: getting ready ..."
    invite = invite_from(text)
    addresses = f"{len(invite.addresses)} address{'es' if len(invite.addresses) != 1 else ''}"
    owner = f"signed by {invite.owner}" + (", for you alone" if invite.papers is not None else "")
    return f"joining {invite.run_id}: an invite {owner}, with {addresses} of backbones; getting ready ..."
