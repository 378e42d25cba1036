"""What can happen to a message on its way: pure functions of the message."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from collab.averaging.messages import plan_digest
from collab.net.wire import Message

Spoil = Callable[[Message], list[Message]]


def flipped(message: Message) -> list[Message]:
    """Three bytes of the payload, or one word of the fields, are others."""
    if len(message.payload):
        payload = bytearray(message.payload)
        for place in {0, len(payload) // 2, len(payload) - 1}:
            payload[place] ^= 0xFF
        return [Message(message.kind, message.fields, bytes(payload))]
    fields = copy.deepcopy(message.fields)
    if message.kind == "join":
        fields["fingerprint"] = "smi"
    elif message.kind == "begin":
        fields["spans"][0][1] += 1
    elif message.kind == "vote":
        fields["seat"]["value"]["digests"] = [_other(text) for text in fields["seat"]["value"]["digests"]]
    else:
        its = _record_or_report(fields)
        its["digests"] = [text and _other(text) for text in its["digests"]]
    return [Message(message.kind, fields)]


def not_finite(message: Message) -> list[Message]:
    """NaN in the place of every number that may be any."""
    if len(message.payload):
        payload = np.full(len(message.payload) // 4, np.nan, "<f4").tobytes()
        return [Message(message.kind, message.fields, payload)]
    fields = copy.deepcopy(message.fields)
    if message.kind == "join":
        fields["weight"] = float("nan")
    elif message.kind == "begin":
        fields["members"][0][1] = float("nan")
        fields["digest"] = plan_digest(fields)
    else:
        fields["record"]["contributors"][0][1] = float("nan")
    return [Message(message.kind, fields)]


def of_wrong_length(message: Message) -> list[Message]:
    """One element, or one entry, too few."""
    if len(message.payload):
        return [Message(message.kind, message.fields, bytes(message.payload)[:-4])]
    fields = copy.deepcopy(message.fields)
    if message.kind == "join":
        fields["num_elements"] = max(fields["num_elements"] - 1, 0)
    elif message.kind == "begin":
        fields["num_elements"] -= 1
        fields["spans"][-1][2] -= 1
        fields["digest"] = plan_digest(fields)
    elif message.kind == "vote":
        fields["seat"]["value"]["digests"].pop()
    else:
        _record_or_report(fields)["digests"].pop()
    return [Message(message.kind, fields)]


def of_another_group(message: Message) -> list[Message]:
    """It names a round, or a history, that is not this one."""
    fields = copy.deepcopy(message.fields)
    if message.kind == "join":
        fields["lineage"] = "elsewhere"
    elif message.kind == "begin":
        fields["lineage"] = "elsewhere"
        fields["digest"] = plan_digest(fields)
    elif message.kind == "vote":
        fields["seat"]["value"]["round_id"] = "elsewhere"
    elif message.kind == "round":
        fields["round_id"] = "elsewhere"
    elif message.kind == "done":
        fields["generation"] += 7
    else:
        fields["record"]["round_id"] = "elsewhere"
    return [Message(message.kind, fields, message.payload)]


def twice(message: Message) -> list[Message]:
    """Replayed."""
    return [message, message]


SPOILS: dict[str, Spoil] = {
    "corrupt": flipped,
    "nan": not_finite,
    "wrong length": of_wrong_length,
    "wrong group": of_another_group,
    "replay": twice,
}


def _record_or_report(fields: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = fields.get("record", fields)
    return record


def _other(digest: str) -> str:
    return digest[::-1] if digest != digest[::-1] else "0" * len(digest)
