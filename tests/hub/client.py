"""The Hub's own client, set up to talk to a stand-in, in a test's process."""

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
