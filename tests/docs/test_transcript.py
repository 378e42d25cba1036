"""What a page shows of terminals is read as it is meant, and a line that is not there is missed."""

import pytest

from tests.docs.transcript import Shown, Typed, transcript

PAGE = """\
Words.

```bash
# anna
collab-peer init here
cat > here/run.yaml <<'END'
# anna is no name here
END
```

```text
wrote here/run.yaml
```

```text bob
epoch 1  loss 6.2440  averaged with 1 other ... 69 %
```

```bash
# anna: Ctrl+C where it runs
```
"""


def test_blocks_are_what_people_type_and_see() -> None:
    assert list(transcript(PAGE)) == [
        Typed("anna", "collab-peer init here"),
        Typed("anna", "cat > here/run.yaml <<'END'\n# anna is no name here\nEND"),
        Shown("", "wrote here/run.yaml"),
        Shown("bob", "epoch 1  loss 6.2440  averaged with 1 other ... 69 %"),
        Typed("anna", ""),
    ]


def test_whose_terminal_it_is_must_be_said() -> None:
    with pytest.raises(ValueError, match="who types this"):
        list(transcript("```bash\ncollab-peer init here\n```"))


@pytest.mark.parametrize(
    ("line", "said", "is_there"),
    [
        ("epoch      2  loss 6.24", "09:17:47  epoch 12  loss 1.5e-05  and so on", True),
        ("clock offset +0.00 s", "(clock offset -1.25 s)", True),
        ("valid until 2026-12-25", "valid until 2027-01-02", True),
        ("paused: ... s", "paused: you have paused it; after 0.1 s", True),
        ("averaged with 1 other", "averaged with 3 others", True),
        ("averaged with 1 others", "averaged with 1 other", False),
        ("epoch 2  loss 6.24", "epoch -  loss 6.24", False),
        ("epoch 2 ... loss", "epoch 2\nloss", False),
    ],
)
def test_numbers_may_differ_and_words_may_not(line: str, said: str, is_there: bool) -> None:
    assert Shown("", line).is_in(said) is is_there
