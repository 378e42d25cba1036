"""Train one model together over the internet."""

from typing import TYPE_CHECKING

from collab.version import VERSION

if TYPE_CHECKING:
    from collab.joining import JoinedRun, Local, join

__all__ = ["JoinedRun", "Local", "join"]
__version__ = VERSION


def __getattr__(name: str) -> object:
    """Import torch and the network only when somebody joins a run."""
    if name in __all__:
        from collab import joining

        return getattr(joining, name)
    raise AttributeError(f"module 'collab' has no attribute {name!r}")
