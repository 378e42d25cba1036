"""The run as it travels to somebody who has only an invite."""

from pathlib import Path
from typing import Any

import pytest

from collab.config import parse_run
from collab.errors import BootstrapFailed, ConfigError, RunMismatch
from collab.net.base import Stream
from collab.net.wire import Message
from collab.swarm.bundle import (
    BUNDLE_PROTOCOL,
    MAX_ASSET_BYTES,
    MAX_ASSETS,
    Bundle,
    fetch_bundle,
    load_bundle,
    save_bundle,
    serve_bundle,
)
from collab.types import PeerId
from tests.fakes import FakeNetwork, run
from tests.swarm.people import PEOPLE

TEXT = "{{run_id: my-run, seed: {seed}, task: {{name: image_classification}}, optimizer: {{learning_rate: 0.003}}}}"
BUNDLE = Bundle(parse_run(TEXT.format(seed=3), origin="test"), {"tokenizer.json": b"{}", "more.bin": bytes(100_000)})
OTHER = Bundle(parse_run(TEXT.format(seed=4), origin="test"), BUNDLE.assets)
FIRST, SECOND = PeerId("first"), PeerId("second")


async def lie(network: FakeNetwork, name: PeerId, *answers: Message) -> None:
    async def answer(stream: Stream) -> None:
        await stream.receive(timeout_s=1)
        for message in answers:
            await stream.send(message, timeout_s=1)
        await stream.receive(timeout_s=1)

    await network.join(name).serve(BUNDLE_PROTOCOL, answer)


def test_the_run_and_its_assets_arrive_as_the_invite_says() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_bundle(network.join(FIRST), BUNDLE)
            got = await fetch_bundle(network.join("me"), [PeerId("gone"), FIRST], BUNDLE.fingerprint)
            assert got == BUNDLE
            assert got.fingerprint == BUNDLE.fingerprint

    run(main())


def test_every_asset_and_every_field_is_in_the_fingerprint() -> None:
    bundles = [
        BUNDLE,
        OTHER,
        Bundle(BUNDLE.run, {}),
        Bundle(BUNDLE.run, {**BUNDLE.assets, "more.bin": b"x"}),
        Bundle(BUNDLE.run, {"tokenizer.json": b"{}", "other.bin": bytes(100_000)}),
    ]
    assert len({bundle.fingerprint for bundle in bundles}) == 5


def test_assets_are_hashed_once_and_cannot_change_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    assets = {"tokenizer.json": b"{}"}
    bundle = Bundle(BUNDLE.run, assets)
    hashed: list[dict[str, str]] = []
    monkeypatch.setattr("collab.swarm.bundle.fingerprint", lambda run, digests, owner: hashed.append(digests) or "f")
    assets["tokenizer.json"] = b"[]"
    assert bundle.assets == {"tokenizer.json": b"{}"}
    with pytest.raises(TypeError):
        bundle.assets["tokenizer.json"] = b"[]"  # type: ignore[index]
    assert [bundle.fingerprint for _ in range(3)] == ["f"] * 3
    assert len(hashed) == 1


def test_a_run_is_kept_for_the_next_life_with_its_owner_and_a_changed_one_is_not_believed(tmp_path: Path) -> None:
    owned = Bundle(BUNDLE.run, BUNDLE.assets, PEOPLE[0].peer_id)
    save_bundle(owned, tmp_path / "run")
    assert load_bundle(tmp_path / "run", owned.fingerprint) == owned
    assert load_bundle(tmp_path / "run", BUNDLE.fingerprint) is None
    assert load_bundle(tmp_path / "none", owned.fingerprint) is None
    (tmp_path / "run" / "owner").write_text(PEOPLE[1].peer_id)
    assert load_bundle(tmp_path / "run", owned.fingerprint) is None


@pytest.mark.parametrize("name", ["../escaped", "/etc/passwd", "a/b", "", ".hidden", "x" * 200, "a\nb"])
def test_an_asset_whose_name_is_no_plain_file_name_is_refused(name: str) -> None:
    hostile = Bundle(BUNDLE.run, {name: b"x"})

    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_bundle(network.join(FIRST), hostile)
            with pytest.raises(BootstrapFailed, match="no plain file name"):
                await fetch_bundle(network.join("me"), [FIRST], hostile.fingerprint)

    run(main())


def test_a_peer_of_another_run_is_named_with_both_fingerprints() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_bundle(network.join(FIRST), OTHER)
            with pytest.raises(RunMismatch) as caught:
                await fetch_bundle(network.join("me"), [FIRST], BUNDLE.fingerprint)
            assert BUNDLE.fingerprint in caught.value.message
            assert OTHER.fingerprint in caught.value.message
            assert "first" in caught.value.message
            assert caught.value.hint

    run(main())


def test_a_changed_asset_is_a_mismatch() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await serve_bundle(network.join(FIRST), Bundle(BUNDLE.run, {**BUNDLE.assets, "tokenizer.json": b"[]"}))
            with pytest.raises(RunMismatch):
                await fetch_bundle(network.join("me"), [FIRST], BUNDLE.fingerprint)

    run(main())


RUN_JSON = BUNDLE.run.model_dump_json()
RUN_WITH_A = Message("run", {"run": RUN_JSON, "assets": ["a"]})


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [Message("run", {})],
        [Message("run", {"run": 5, "assets": []})],
        [Message("run", {"run": RUN_JSON, "assets": "tokenizer.json"})],
        [Message("run", {"run": RUN_JSON, "assets": [f"{n}" for n in range(MAX_ASSETS + 1)]})],
        [Message("run", {"run": RUN_JSON, "assets": [{"a": 1}]}), Message("asset", {"name": "a", "num_bytes": 0})],
        [RUN_WITH_A, Message("asset", {"name": "b", "num_bytes": 0})],
        [RUN_WITH_A, Message("lump", {"name": "a", "num_bytes": 0})],
        [RUN_WITH_A, Message("asset", {"num_bytes": 0})],
        [RUN_WITH_A, Message("asset", {"name": "a"})],
        [RUN_WITH_A, Message("asset", {"name": "a", "num_bytes": -1})],
        [RUN_WITH_A, Message("asset", {"name": "a", "num_bytes": MAX_ASSET_BYTES + 1})],
        [RUN_WITH_A, Message("asset", {"name": "a", "num_bytes": 2}), Message("piece", {"start": 0}, b"x")],
        [Message("run", {"run": RUN_JSON, "assets": ["a", "b"]}), Message("asset", {"name": "a", "num_bytes": 0})],
    ],
)
def test_a_peer_that_sends_something_else_is_passed_over(answers: list[Message]) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await lie(network, FIRST, *answers)
            await serve_bundle(network.join(SECOND), BUNDLE)
            assert await fetch_bundle(network.join("me"), [FIRST, SECOND], BUNDLE.fingerprint) == BUNDLE

    run(main())


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "5", '{"run_id": "my-run"}', '{"newer_field": 1}', "[" * 100_000, '{"a":' * 300 + "1" + "}" * 300],
)
def test_a_run_that_this_version_cannot_read_is_a_config_error(text: str) -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            await lie(network, FIRST, Message("run", {"run": text, "assets": []}))
            with pytest.raises(ConfigError):
                await fetch_bundle(network.join("me"), [FIRST], BUNDLE.fingerprint)

    run(main())


def test_when_nobody_answers_the_error_lists_them_all() -> None:
    async def main() -> None:
        async with FakeNetwork() as network:
            me: Any = network.join("me")
            with pytest.raises(BootstrapFailed) as caught:
                await fetch_bundle(me, [FIRST, SECOND], BUNDLE.fingerprint)
            assert "first" in caught.value.message
            assert "second" in caught.value.message
            assert caught.value.hint

    run(main())
