"""What a hosted notebook has installed stays as it is; what collab needs is installed beside it.

Colab and Kaggle come with hundreds of packages that fit each other, and have loaded some of them already: an upgrade of
torch, numpy or protobuf breaks both. Only Python's standard library is used here: nothing else may be there yet.
"""

import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from collab.errors import CollabError

PACKAGE = "collab"
CANONICAL = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9]+([._-][a-z0-9]+)*)?")
"""A version that pip takes in a file of constraints; some vendors write others."""

Pip = Callable[[list[str]], int]
"""Runs pip with arguments; its exit code."""


class PackagesClash(CollabError):
    """collab does not go with what is installed, or pip has changed that."""


def install_beside(package: str = PACKAGE, pip: "Pip | None" = None) -> list[str]:
    """Install what ``package`` needs and is not there; returns what came, as ``name==version``.

    Args:
        package: installed already, without its dependencies.

    Raises:
        PackagesClash: there is no choice of versions that leaves everything in place, or pip could not be had to.
    """
    before = installed()
    with tempfile.TemporaryDirectory(prefix="collab-packages-") as folder:
        kept = Path(folder) / "constraints.txt"
        kept.write_text(constraints(before), encoding="utf-8")
        code = (pip or run_pip)(["install", "--quiet", "--constraint", str(kept), *requirements(package)])
    importlib.invalidate_caches()
    if code:
        raise PackagesClash(
            "pip could not install what collab needs beside what is here; its reason is above",
            hint="restart with a fresh runtime, and run this before anything else is installed",
        )
    after = installed()
    changed = [f"{name} {was} -> {after.get(name)}" for name, was in before.items() if after.get(name) != was]
    if changed:
        raise PackagesClash(f"pip has changed what was here: {', '.join(changed)}", hint="restart with a fresh runtime")
    return [f"{name}=={version}" for name, version in after.items() if name not in before]


def installed() -> dict[str, str]:
    """Versions by name; of two of a name the one that Python would import."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return dict(sorted(found.items()))


def constraints(versions: Mapping[str, str]) -> str:
    """What pip must not change, as the text of its file of constraints."""
    return "".join(f"{name}=={version}\n" for name, version in versions.items() if CANONICAL.fullmatch(version))


def requirements(package: str) -> list[str]:
    """What a package needs, extras left out."""
    return [line for line in metadata.requires(package) or () if not re.search(r";.*\bextra\s*==", line)]


def run_pip(arguments: list[str]) -> int:
    """The pip of this interpreter; what it has to say comes out here."""
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.stdout.write(done.stdout)
    return done.returncode
