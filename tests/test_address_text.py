"""What a machine is called where its owner has named nothing."""

import platform

import pytest

from collab.net.address_text import NAMELESS, machine_name


@pytest.mark.parametrize("name", ["annas-laptop", "gpu-7.example.org", "ubuntu-24", "d2f1c0a9b8e7", "node-2-1"])
def test_a_machine_goes_by_its_own_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(platform, "node", lambda: name)
    assert machine_name() == name


@pytest.mark.parametrize(
    "name", ["ip-172-31-5-6", "c-73-1-2-3.hsd1.ca.comcast.net", "static.7.113.0.203.clients.example", "10.0.0.7", ""]
)
def test_a_name_that_says_where_the_machine_is_reached_is_not_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(platform, "node", lambda: name)
    assert machine_name() == NAMELESS
