"""How the libp2p daemon is started."""

import asyncio
from uuid import uuid4

import pytest

from collab.net.daemon import _Answering, _Daemon


def command() -> list[str]:
    """What is before the daemon's own arguments."""
    made = _Daemon._make_process_args("/p2pd", listen="/unix/x")
    return made[: made.index("/p2pd")]


def test_it_uses_one_processor_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    assert command()[1] == "GOMAXPROCS=1"
    monkeypatch.setenv("GOMAXPROCS", "4")
    assert not any(word.startswith("GOMAXPROCS") for word in command())


def test_it_has_a_session_of_its_own() -> None:
    assert command()[-1].endswith("setsid")


def test_questions_whose_askers_have_gone_are_forgotten() -> None:
    async def main() -> None:
        answering, question = _Answering(), uuid4()
        answering[question] = asyncio.create_task(asyncio.sleep(1000.0))
        await asyncio.sleep(0)
        assert question in answering
        answering[question].cancel()
        await asyncio.sleep(0.01)
        assert not answering

    asyncio.run(main())
