"""The Hub, as the tests have it."""
