"""What files of encoded data and tokenizers are named by: all that decides their content."""

import hashlib
import json
from functools import lru_cache
from typing import Any

_FORMAT = 1
"""Part of every cache key; raise it when the same inputs would give other files."""


def key_of(content: dict[str, Any]) -> str:
    """32 hex digits for these JSON values."""
    canonical = json.dumps(content | {"format": _FORMAT}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


@lru_cache(maxsize=2)  # a tokenizer may have megabytes, and is part of the key of each of thousands of shards
def digest_of(text: str) -> str:
    """64 hex digits for a text that is itself no part of a key."""
    return hashlib.sha256(text.encode()).hexdigest()
