"""What an organiser adds to the README on the Hub stays, and what it cannot do is change what is ours."""

import pytest
import yaml

from peers.organisers_page import MARK, MOST_TAGS, with_organisers_part

CARD = b"---\nlibrary_name: transformers\ntags:\n- collab\n- strategy-dedloc\n---\n# my-run\n\nabout\n"


def parts(page: bytes) -> tuple[dict[str, object], str, str]:
    """Metadata, our body, and what is below the mark."""
    _, metadata, rest = page.decode().split("---\n", 2)
    body, _, below = rest.partition(MARK)
    return yaml.safe_load(metadata), body, below


def test_a_first_card_ends_with_the_mark() -> None:
    metadata, body, below = parts(with_organisers_part(CARD, None))
    assert metadata == {"library_name": "transformers", "tags": ["collab", "strategy-dedloc"]}
    assert body == "# my-run\n\nabout\n\n"
    assert below == "\n"


def test_what_the_organiser_has_added_goes_on_with_each_card() -> None:
    page = with_organisers_part(CARD, None).decode()
    page = page.replace("library_name:", "language: en\nlibrary_name:").replace("- collab\n", "- collab\n- poems\n")
    page = page.replace("about", "defaced") + "\n## Our thanks\n\nTo all.\n"
    for _ in range(3):
        page = with_organisers_part(CARD, page.encode()).decode()
    metadata, body, below = parts(page.encode())
    assert metadata == {
        "language": "en", "library_name": "transformers", "tags": ["collab", "strategy-dedloc", "poems"],
    }  # fmt: skip
    assert body == "# my-run\n\nabout\n\n"
    assert below == "\n\n## Our thanks\n\nTo all.\n"


def test_what_is_written_there_stays_as_it_is_written() -> None:
    """What means something else to YAML as it is read here than to the Hub, which refuses a language that is false."""
    lines = ["language:", "- no", "- en", "inference: false", "revision: 1.10", "date: 2026-01-02", "data: 2024_01"]
    page = with_organisers_part(CARD, ("---\n" + "\n".join([*lines, "tags: [no, 12:30]"]) + "\n---\n").encode())
    for _ in range(2):
        written = page.decode().split("---\n")[1].splitlines()
        assert [line for line in lines if line not in written] == []
        assert written[written.index("language:") :][:3] == lines[:3]
        assert written[-4:] == ["- collab", "- strategy-dedloc", "- no", "- 12:30"]
        page = with_organisers_part(CARD, page)


def test_what_is_ours_is_ours() -> None:
    theirs = b"---\nlibrary_name: other\ntags: [mine]\nlicense: mit\n---\n# mine\n"
    metadata, body, _ = parts(with_organisers_part(CARD, theirs))
    assert metadata["library_name"] == "transformers"
    assert metadata["tags"] == ["collab", "strategy-dedloc", "mine"]
    assert metadata["license"] == "mit", "which the run file does not name"
    assert "mine" not in body


@pytest.mark.parametrize(
    "theirs",
    [
        b"", b"no metadata", b"---\n", b"---\n- a\n- b\n---\n", b"---\n&a [*a]\n---\n", b"---\na: *nowhere\n---\n",
        b"---\n3: x\n---\n", b"---\ntags: 3\n---\n", b"---\ntags: [[1], {2: 3}]\n---\n", b"---\n? [a]\n: b\n---\n",
        b"---\na: 2026-99-99\n---\n", b"\xff\xfe---", b"---\n" + b"[" * 5000 + b"\n---\n",
        b"---\na: !!python/object/apply:os.system [x]\n---\n",
    ],
)  # fmt: skip
def test_a_page_that_is_garbled_leaves_ours_as_it_is(theirs: bytes) -> None:
    metadata, body, _ = parts(with_organisers_part(CARD, theirs))
    assert (metadata, body) == parts(with_organisers_part(CARD, None))[:2]


def test_of_tags_there_is_an_end() -> None:
    theirs = "---\ntags:\n" + "".join(f"- t{number}\n" for number in range(1000)) + "---\n"
    metadata, _, _ = parts(with_organisers_part(CARD, theirs.encode()))
    assert len(metadata["tags"]) == 2 + MOST_TAGS  # type: ignore[arg-type]
