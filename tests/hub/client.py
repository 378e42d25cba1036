"""The Hub's own client, set up to talk to a stand-in, in a test's process."""

import os
from collections.abc import Iterator

import huggingface_hub
import huggingface_hub.constants
import pytest

from tests.hub.standin import TOKEN, HubStandIn


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """A stand-in, and a client in this process that has a token for it and may use the network of this machine."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubStandIn() as server:
        yield server
    huggingface_hub.close_session()


def use_hub(url: str) -> None:
    """Of a process that may use this machine's network, has a token, and takes the stand-in for the Hub."""
    settings = huggingface_hub.constants  # as HF_ENDPOINT would have it; this process has imported it already
    settings.HUGGINGFACE_CO_URL_TEMPLATE = settings.HUGGINGFACE_CO_URL_TEMPLATE.replace(settings.ENDPOINT, url)
    settings.ENDPOINT, settings.HF_HUB_OFFLINE, settings.HF_HUB_DISABLE_XET = url, False, True
    os.environ["HF_TOKEN"] = TOKEN
