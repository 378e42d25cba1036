"""The page of a model on the Hub: what it says, and what nobody can make it say."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import yaml

from collab.config import About, Run, parse_run
from peers.credit import Credit
from peers.licences import KNOWN, licence_metadata
from peers.model_card import MOST_POINTS, Amended, Facts, Point, model_card, picture, pictures, plain
from peers.run_file import template

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
