"""Which run the backbone of a run directory serves: the run file beside it may be edited meanwhile, and what its owner
signs then would be for a run that nobody has, and nobody would answer who looks.
"""

from pathlib import Path

from collab.durable import replace_file
from collab.errors import ConfigError
from peers.places import RUN_FILE, DataDir


def note_served(data_dir: DataDir, fingerprint: str) -> None:
    """For the organiser's commands on this machine.

    Raises:
        OSError: the disk does not take it.
    """
    replace_file(data_dir.fingerprint, fingerprint.encode())


def check_is_served(directory: Path, fingerprint: str) -> None:
    """Where no backbone has said what it serves, whatever the run file says counts.

    Args:
        fingerprint: of the run that the directory holds now.

    Raises:
        ConfigError: its backbone serves another one, or did when it last ran.
    """
    try:
        served = DataDir(directory / "backbone").fingerprint.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return
    if served != fingerprint:
        text = (
            f"the run of {directory / RUN_FILE} is not the run that the backbone of this directory serves: "
            "nobody would answer or follow this"
        )
        hint = "change it back, or start the backbone with it first, if that is to be another run from now on"
        raise ConfigError(text, hint=hint)
