"""The page of a model on the Hub: what it says, and what nobody can make it say."""

import asyncio
import errno
import json
import math
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from collab.config import About, Run, parse_run
from collab.swarm.progress import SwarmView
from collab.swarm.records import PeerRecord
from collab.types import PeerId
from peers.credits import MOST_PEERS, SAVE_S, Credit, CreditBook
from peers.licences import KNOWN, licence_metadata
from peers.model_card import MOST_POINTS, Amended, Facts, Point, model_card, picture, pictures, plain
from peers.run_file import template
from tests.fakes import FakeCompute, FakeNetwork, make_ports, run
from tests.swarm.people import record

RUN = parse_run(template("my-run"), origin="the test")
POINTS = (Point(1, 5.0), Point(2, 4.0, 2, 4.5), Point(3, math.nan, 2, 4.5), Point(4, 3.0, 4, 3.5))


def card(**facts: object) -> str:
    told = {"place": "org/m", "run": RUN, "epoch": 120, "eval_loss": 2.5, "num_parameters": 1_300_000, **facts}
    return model_card(Facts(**told)).decode()  # type: ignore[arg-type]


def test_a_card_says_what_how_good_how_to_load_and_how_to_join() -> None:
    text = card(can_join=True, points=POINTS)
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert metadata["library_name"] == "transformers"
    assert metadata["pipeline_tag"] == "text-generation"
    assert "strategy-dedloc" in metadata["tags"]
    for told in (
        "1.3 M parameters",
        "after 120 global steps, loss on held-out data 2.5000",
        "the source code of Python's standard library",
        "DeDLOC",
        "adamw, learning rate 0.002, schedule linear",
        'AutoModelForCausalLM.from_pretrained("org/m")',
        "collab-peer join org/m",
        "collab-peer backbone DIR --from org/m --new-owner",
        "![Loss over epochs](loss.svg)",
    ):
        assert told in text, told


def test_a_run_that_nobody_can_find_by_its_name_does_not_say_that_one_can() -> None:
    text = card(can_join=False)
    assert "collab-peer join org/m" not in text
    assert "Ask its organiser for an invite" in text


def test_a_dataset_of_the_hub_is_named_in_the_metadata() -> None:
    data = {"source": "hub", "dataset": "owner/texts"}
    run = RUN.model_copy(update={"task": RUN.task.model_copy(update={"data": None})})
    content = run.model_dump(mode="json")
    content["task"]["data"] = data
    other = parse_run(yaml.safe_dump(content), origin="the test")
    metadata = yaml.safe_load(card(run=other).split("---\n")[1])
    assert metadata["datasets"] == ["owner/texts"]


def about(**told: str) -> Run:
    return RUN.model_copy(update={"about": About(**told)})


def test_what_the_organiser_says_of_the_run_is_on_its_page() -> None:
    told = {"purpose": "Code for all", "contact": "mail@example.org", "data_license": "PSF", "model_license": "MIT"}
    text = card(run=about(**told))
    for name, said in (("What it is for", "purpose"), ("Licence of the model", "model_license"),
                       ("Licence of the data", "data_license"), ("Questions go to", "contact")):  # fmt: skip
        assert f"| {name} | {plain(told[said])} |" in text
    assert yaml.safe_load(text.split("---\n")[1])["license"] == "mit"
    some = card(run=about(purpose="Code"))
    assert "| What it is for | Code |" in some
    assert "Licence" not in some
    assert "organiser says" not in card(run=about())
    assert "license" not in yaml.safe_load(card(run=about()).split("---\n")[1])


HOSTILE = (
    "![x](https://evil.example/p.png)", "<script>alert(1)</script>", "[click](javascript:x)", "| a | b |", "**bold**",
    "mit\" evil: true", "x: [1, 2]", "*anchor", "@somebody", "--- evil: true ---",
)  # fmt: skip


@pytest.mark.parametrize("said", HOSTILE)
def test_what_an_organiser_says_is_text_and_never_markup(said: str) -> None:
    told = dict.fromkeys(("purpose", "contact", "data_license", "model_license"), said)
    text = card(run=about(**told))
    assert text.count(f" | {plain(said)} |") == 4
    assert said not in text.replace(plain(said), "")
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert metadata.keys() == {"library_name", "license", "license_name", "pipeline_tag", "tags"}
    assert metadata["license"] == "other"
    assert re.fullmatch(r"[a-z0-9.-]+", metadata["license_name"])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        *((one, {"license": one}) for one in sorted(KNOWN)),
        ("MIT License", {"license": "mit"}),
        ("Apache 2.0", {"license": "apache-2.0"}),
        ("Apache License 2.0", {"license": "apache-2.0"}),
        ("CC0", {"license": "cc0-1.0"}),
        ("CC BY-SA 4.0", {"license": "cc-by-sa-4.0"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("The Unlicense", {"license": "unlicense"}),
        ("Our Own Terms, v2", {"license": "other", "license_name": "our-own-terms-v2"}),
        ("https://example.org/terms", {"license": "other", "license_name": "https-example.org-terms"}),
        ("自由", {"license": "other", "license_name": "see-the-page"}),
        ("  ", {}),
        ("", {}),
    ],
)
def test_a_licence_has_the_hubs_name_where_it_has_one(said: str, expected: dict[str, str]) -> None:
    assert licence_metadata(said) == expected


def test_speed_and_learning_rate_are_drawn_beside_the_loss_where_they_are_known() -> None:
    points = [replace(p, samples_per_s=100.0 * p.epoch, learning_rate=0.1 / p.epoch) for p in POINTS]
    assert set(pictures(POINTS)) == {"loss.svg"}
    assert ".svg" not in card(points=POINTS).replace("loss.svg", "")
    drawn = pictures(points)
    assert set(drawn) == {"loss.svg", "samples_per_s.svg", "learning_rate.svg"}
    assert drawn["loss.svg"] == picture(POINTS)
    assert all(ET.fromstring(one).tag.endswith("svg") for one in drawn.values())
    assert b">400<" in drawn["samples_per_s.svg"]
    assert b">0.1<" in drawn["learning_rate.svg"]
    text = card(points=points)
    assert "![Samples a second over epochs](samples_per_s.svg)" in text
    assert "![Learning rate over epochs](learning_rate.svg)" in text
    many = [Point(epoch, 1.0, samples_per_s=float(epoch), learning_rate=1.0) for epoch in range(20 * MOST_POINTS)]
    assert all(len(one) < 40_000 for one in pictures(many).values())


def test_only_who_agreed_is_named_with_what_all_their_machines_have_given() -> None:
    given = (Credit("Anna", 100, 900), Credit("", 0, 700), Credit("Anna", 0, 500), Credit("Bob", 0, 20))
    text = card(given=given)
    assert "- Anna: 1,500 samples\n- Bob: 20 samples\n- 1 more machine" in text
    assert "| Samples trained so far, as peers tell | 2,220 |" in text


def test_who_is_known_as_a_sum_only_is_thanked_and_counted_with_the_others() -> None:
    text = card(given=(Credit("Anna", 0, 1000), Credit("", 0, 50)), num_others=3, samples_of_others=950)
    assert "- Anna: 1,000 samples\n- 4 more machines" in text
    assert "| Samples trained so far, as peers tell | 2,000 |" in text
    assert "- 1 more machine\n" in card(num_others=1, samples_of_others=5)


def test_what_was_amended_stands_beside_what_the_run_began_with() -> None:
    text = card(learning_rate=Amended(0.0005, 300), target_batch_size=Amended(8192, 120))
    assert "adamw, learning rate 0.0005 since epoch 300 (0.002 at the beginning), schedule linear" in text
    batch = RUN.strategy.target_batch_size
    assert f"| Samples of one global step | 8,192 since epoch 120 ({batch:,} at the beginning) |" in text
    assert "What its organiser has changed since then is above." in text
    assert "since" not in card()


@pytest.mark.parametrize(
    "name",
    ["![x](https://evil.example/p.png)", "<script>alert(1)</script>", "[click](javascript:x)", "`code`", "# title",
     "a\n---\nlicense: other", "| a | b |", "https://evil.example", "@somebody", "**bold**", "&lt;img&gt;"],
)  # fmt: skip
def test_a_name_is_text_and_never_markup(name: str) -> None:
    text = card(given=(Credit(name, 0, 5),))
    line = next(line for line in text.splitlines() if line.endswith(": 5 samples"))
    shown = line.removeprefix("- ").removesuffix(": 5 samples")
    assert shown == plain(name)
    for mark in "![]()`#|*@:<>":
        position = shown.find(mark)
        while position >= 0:
            assert shown[position - 1] == "\\", (mark, shown)
            position = shown.find(mark, position + 1)
    assert "\n" not in shown


def test_the_picture_is_whole_svg_with_both_curves_and_stays_small() -> None:
    drawn = picture(POINTS)
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert b"held-out" in drawn
    many = picture([Point(epoch, 1.0 / epoch, epoch, 2.0 / epoch) for epoch in range(1, 20 * MOST_POINTS)])
    assert len(many) < 40_000
    assert ET.fromstring(picture([])).tag.endswith("svg")


# -- who gave how much -------------------------------------------------------------------------------------------------


def told(samples: int, *, person: int = 0, credit: bool = True) -> PeerRecord:
    return record(person, total_samples=samples, wants_credit=credit, name=f"person {person}")


def test_what_a_machine_gave_in_earlier_lives_counts_also_after_our_own_restart(tmp_path: Path) -> None:
    book = CreditBook(tmp_path / "credits.json")
    for samples in (10, 30, 5, 8):
        book.note([told(samples)])
    book.note([told(100, person=1, credit=False)])
    book.save()
    again = CreditBook(tmp_path / "credits.json")
    assert [(one.name, one.total) for one in again.all()] == [("", 100), ("person 0", 38)]


def test_a_late_record_and_a_second_machine_with_the_same_key_add_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "credits.json"
    book = CreditBook(path)

    def hear(*words: tuple[int, int]) -> list[int]:
        for life, samples in words:
            book.note([replace(told(samples), life=life)])
        return [one.total for one in book.all()]

    assert hear((1, 1000), (1, 900), (1, 1000)) == [1000], "the second one was read late"
    assert hear((2, 10), (1, 1001), (2, 11), (1, 1002)) == [1013], "two at once"
    book.save()
    book = CreditBook(path)
    assert hear((2, 12), (1, 1003), (3, 1003)) == [2018], "a new life that says as much as the one before"
    assert hear((4, 5), (5, 5), (6, 5), (7, 5)) == [2038]
    assert hear((7, 6), (6, 5)) == [2039]


def test_a_trainer_that_says_its_life_after_an_upgrade_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "credits.json"
    path.write_text(json.dumps({told(1).peer: {"name": "Anna", "earlier": 5, "samples": 30, "invite": ""}}))
    book = CreditBook(path)
    book.note([replace(told(31), life=7)])
    assert [one.total for one in book.all()] == [36]
    book.note([replace(told(2), life=8)])
    assert [one.total for one in book.all()] == [38]


def test_strangers_that_boast_push_nobody_out_who_was_in_a_round_also_after_our_restart(tmp_path: Path) -> None:
    book = CreditBook(tmp_path / "credits.json")
    book.note([told(10), told(20, person=1)], contributors=(told(1).peer,))
    book.save()
    again = CreditBook(tmp_path / "credits.json")
    boasts = [replace(told(10**9), peer=PeerId(f"stranger {number}")) for number in range(MOST_PEERS + 5)]
    for at_once in (boasts[: MOST_PEERS // 2], boasts[MOST_PEERS // 2 :]):
        again.note([told(12), *at_once])
    known = dict(again.by_peer())
    assert len(known) == MOST_PEERS
    assert known[told(1).peer].total == 12
    assert told(1, person=1).peer not in known, "of those nobody has seen in a round who gave most stays"


def test_who_is_in_a_book_of_an_earlier_version_counts_as_seen(tmp_path: Path) -> None:
    path = tmp_path / "credits.json"
    path.write_text('{"a": {"name": "Anna", "earlier": 0, "samples": 3, "invite": ""}}')
    assert [one.is_seen for one in CreditBook(path).all()] == [True]


def test_when_somebody_gave_last_is_when_it_first_said_so(tmp_path: Path) -> None:
    book = CreditBook(tmp_path / "credits.json")
    for said_at, samples in ((5.0, 10), (9.0, 10), (13.0, 12), (17.0, 12)):
        book.note([replace(told(samples), said_at=said_at), replace(told(0, person=1), said_at=said_at)])
    (peer,) = book.grew_at_s
    assert (peer, book.grew_at_s[peer]) == (told(1).peer, 13.0), "who has given nothing is not in it"
    book.save()
    again = CreditBook(tmp_path / "credits.json")
    again.note([replace(told(12), said_at=99.0)])
    assert again.grew_at_s == {}
    again.note([replace(told(3), said_at=103.0)])
    assert again.grew_at_s == {peer: 103.0}, "of a new life"


def test_when_somebody_has_last_said_whether_to_be_named_is_known_after_our_restart(tmp_path: Path) -> None:
    book = CreditBook(tmp_path / "credits.json")
    for at_s, credit, expected in ((5.0, True, 5.0), (9.0, True, 9.0), (20.0, False, 20.0), (7.0, False, 20.0)):
        records = [replace(told(int(at_s), credit=credit), said_at=at_s)]
        book.note(records)
        book.date(records)
        assert [one.said_at_s for one in book.all()] == [expected]
    book.date([replace(told(30), said_at=30.0)])
    assert [one.said_at_s for one in book.all()] == [20.0], "another word than the one that is in the book"
    book.note([replace(told(7), said_at=7.0)])
    assert [one.name for one in book.all()] == [""], "a record that is read late"
    book.save()
    assert [one.said_at_s for one in CreditBook(tmp_path / "credits.json").all()] == [20.0]


def test_who_takes_the_name_back_is_heard_before_the_new_life_has_given_anything(tmp_path: Path) -> None:
    """It may leave before it does."""
    book = CreditBook(tmp_path / "credits.json")
    for records in (
        [replace(told(32), life=1, said_at=10.0)],
        [replace(told(0, credit=False), life=2, said_at=20.0), replace(told(0, person=1), said_at=20.0)],
        [replace(told(32), life=1, said_at=15.0)],
    ):
        book.note(records)
        book.date(records)
    [credit] = book.all()
    assert (credit.name, credit.said_at_s, credit.total, credit.life) == ("", 20.0, 32, 1)
    back = [replace(told(0), life=2, said_at=30.0)]
    book.note(back)
    book.date(back)
    assert [(one.name, one.said_at_s) for one in book.all()] == [("person 0", 30.0)]


def test_who_takes_the_word_back_is_named_no_more(tmp_path: Path) -> None:
    book = CreditBook(tmp_path / "credits.json")
    book.note([told(10)])
    book.note([told(12, credit=False)])
    assert [one.name for one in book.all()] == [""]


def test_with_which_invite_somebody_came_is_known_after_our_restart_and_when_it_shows_none_any_more(
    tmp_path: Path,
) -> None:
    book = CreditBook(tmp_path / "credits.json")
    book.note([told(10)])
    book.save()
    book.note([told(10)], lambda _: PeerId("an invite"))
    book.save()
    again = CreditBook(tmp_path / "credits.json")
    again.note([told(12)])
    assert [one.invite for one in again.all()] == ["an invite"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 3}', '{"a": {"name": 1}}', "\xff", "[" * 100_000])
def test_a_book_that_cannot_be_read_is_put_aside_before_another_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "credits.json"
    for number in (1, 2):
        path.write_bytes(content.encode("latin-1"))
        book = CreditBook(path)
        assert book.all() == ()
        book.note([told(10)])
        book.save()
        aside = tmp_path / f"credits.unreadable-{number}.json"
        assert aside.read_bytes() == content.encode("latin-1")
        assert str(aside) in caplog.text
        assert "to have it back" in caplog.text
        assert [one.total for one in CreditBook(path).all()] == [10]


def test_a_book_that_cannot_be_put_aside_either_is_not_written_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credits.json"
    path.write_text("{")

    def fails(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "rename", fails)
    book = CreditBook(path)
    book.note([told(10)])
    book.save()
    assert path.read_text() == "{"
    assert [one.total for one in book.all()] == [10], "it counts, for as long as it lives"
    assert "it stays as it is" in caplog.text


def test_a_book_is_on_the_disk_before_it_takes_the_place_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = CreditBook(tmp_path / "credits.json")
    book.note([told(10)])
    book.save()

    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        book.note([told(30)])
        book.save()
        assert [one.total for one in CreditBook(tmp_path / "credits.json").all()] == [10]
    book.save()
    assert [one.total for one in CreditBook(tmp_path / "credits.json").all()] == [30], "it is tried again"


def test_a_book_is_written_beside_the_event_loop_and_once_more_at_the_end(tmp_path: Path) -> None:
    ports, path = make_ports(FakeNetwork().join("a")), tmp_path / "credits.json"
    book, samples = CreditBook(path), iter(range(1, 100))
    kept: list[list[int]] = []

    class Beside(FakeCompute):
        async def beside(self, work: Callable[[], Any]) -> Any:
            work()
            kept.append([one.total for one in CreditBook(path).all()])

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SAVE_S + 5.0):
                await book.keep(
                    replace(ports, compute=Beside()),
                    lambda: SwarmView(at_s=0.0, records=(replace(told(next(samples)), said_at=7.0),)),
                    lambda _: PeerId("an invite"),
                    lambda: (told(1).peer,),
                )

    run(main())
    assert len(kept) == 1
    kept_last = [(one.invite, one.is_seen, one.said_at_s) for one in CreditBook(path).all()]
    assert kept_last == [("an invite", True, 7.0)]
    assert [one.total for one in CreditBook(path).all()] == [one.total for one in book.all()] > kept[0]
