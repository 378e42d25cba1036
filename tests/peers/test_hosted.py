"""Secrets and folders of Colab and Kaggle, with stand-ins for the modules that only exist there."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from peers.hosted import mounted_drive, secrets

STORED = {"HF_TOKEN": "hf_abc"}


class SecretNotFoundError(Exception):
    """As Colab has it."""


class NotebookAccessError(Exception):
    """As Colab has it."""


class BackendError(Exception):
    """As Kaggle has it."""


class CredentialError(Exception):
    """As Kaggle has it."""


def module(name: str, **content: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(content)
    return made


def test_elsewhere_there_are_no_secrets() -> None:
    assert secrets("HF_TOKEN", "WANDB_API_KEY") == {}


def test_on_colab_a_secret_that_this_notebook_cannot_have_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(name: str) -> str:
        if name == "private":
            raise NotebookAccessError
        if name not in STORED:
            raise SecretNotFoundError
        return STORED[name]

    errors = {"SecretNotFoundError": SecretNotFoundError, "NotebookAccessError": NotebookAccessError}
    monkeypatch.setitem(sys.modules, "google.colab.userdata", module("google.colab.userdata", get=get, **errors))
    assert secrets("private", "WANDB_API_KEY", "HF_TOKEN") == STORED


def kaggle(client: type) -> ModuleType:
    return module(
        "kaggle_secrets", UserSecretsClient=client, BackendError=BackendError, CredentialError=CredentialError
    )


def test_on_kaggle_a_secret_that_is_not_attached_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def get_secret(self, name: str) -> str:
            if name not in STORED:
                raise BackendError
            return STORED[name]

    monkeypatch.setitem(sys.modules, "kaggle_secrets", kaggle(Client))
    assert secrets("WANDB_API_KEY", "HF_TOKEN") == STORED


def test_on_kaggle_whose_image_has_colabs_module_too_nobody_asks_that_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would ask a page that is not there, and wait for its answer."""

    class Client:
        def get_secret(self, name: str) -> str:
            return STORED[name]

    asked: list[str] = []
    monkeypatch.setitem(sys.modules, "google.colab.userdata", module("google.colab.userdata", get=asked.append))
    monkeypatch.setitem(sys.modules, "kaggle_secrets", kaggle(Client))
    assert secrets("HF_TOKEN") == STORED
    assert asked == []


@pytest.mark.parametrize("error", [CredentialError, ConnectionError])
def test_on_kaggle_without_internet_there_are_none_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    class Client:
        def __init__(self) -> None:
            raise error

    monkeypatch.setitem(sys.modules, "kaggle_secrets", kaggle(Client))
    assert secrets("HF_TOKEN") == {}


def test_the_drive_is_mounted_before_a_folder_of_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mounted: list[str] = []
    monkeypatch.setitem(sys.modules, "google.colab.drive", module("google.colab.drive", mount=mounted.append))
    assert mounted_drive() == Path("/content/drive/MyDrive/collab")
    assert mounted == ["/content/drive"]
