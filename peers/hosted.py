"""What Colab and Kaggle have for whoever runs a notebook there: secrets, and a place that outlives the machine."""

import importlib
from pathlib import Path
from types import ModuleType

SECRETS = {"join": ("HF_TOKEN",), "backbone": ("HF_TOKEN", "WANDB_API_KEY")}
"""What a command has a use for, under the names by which their libraries look for them."""
DRIVE = Path("/content/drive")
NO_SECRET = (
    "SecretNotFoundError",
    "NotebookAccessError",
    "TimeoutException",
    "BackendError",
    "CredentialError",
    "NotFoundError",
    "ValidationError",
)
"""What the two modules raise where there is no such secret, or this notebook may not have it; each has some of them."""


def secrets(*names: str) -> dict[str, str]:
    """Those of these that the host keeps for this notebook. Never print what comes out."""
    module = _module("kaggle_secrets") or _module("google.colab.userdata")  # Kaggle's image has Colab's, too
    if module is None:
        return {}
    refusals = tuple(getattr(module, name) for name in NO_SECRET if hasattr(module, name))
    found = {}
    try:
        get = module.UserSecretsClient().get_secret if hasattr(module, "UserSecretsClient") else module.get
        for name in names:
            try:
                found[name] = str(get(name))
            except refusals:
                continue  # not everybody has every one
    except (*refusals, ConnectionError):
        return found  # no secrets are to be had from here at all
    return {name: value for name, value in found.items() if value}


def mounted_drive(folder: str = "collab") -> Path:
    """A folder of the user's Google Drive, which Colab mounts after asking them."""
    drive = importlib.import_module("google.colab.drive")
    drive.mount(str(DRIVE))
    return DRIVE / "MyDrive" / folder


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None
