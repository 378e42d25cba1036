"""What holds for every test of real processes."""

import pytest

LIMIT_S = 900.0
"""Of a test, whose waits have limits of their own: for one that waits for nothing that it can name."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Gives time to those on slow machines; the limit of all others is for what runs in virtual time."""
    if item.get_closest_marker("timeout") is None:
        item.add_marker(pytest.mark.timeout(LIMIT_S))
