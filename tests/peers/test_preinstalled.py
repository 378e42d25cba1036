"""What a hosted notebook has installed stays as it is."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peers.preinstalled import PackagesClash, constraints, install_beside, installed, requirements

NEEDS = "".join(f"Requires-Dist: {line}\n" for line in ("theirs>=0.5", "more", 'never; extra == "all"'))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, the only one: ``theirs`` 1.0 and ``ours``, which needs two more."""
    folder = tmp_path / "site"
    monkeypatch.setattr(sys, "path", [str(folder)])
    put(folder, "theirs", "1.0+cu128")
    put(folder, "ours", "0.1", NEEDS)
    return folder


def put(folder: Path, name: str, version: str, needs: str = "") -> None:
    for old in folder.glob(f"{name}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    place = folder / f"{name}-{version}.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")


def pip_that(does: Callable[[], None], seen: list[str], code: int = 0) -> Callable[[list[str]], int]:
    """Stands in for pip, and keeps what it was told to keep."""

    def pip(arguments: list[str]) -> int:
        kept = Path(arguments[arguments.index("--constraint") + 1])
        seen.extend([*kept.read_text().split(), *arguments[arguments.index("--constraint") + 2 :]])
        does()
        return code

    return pip


def test_only_what_is_missing_is_installed_and_pip_is_bound_to_what_is_there(site: Path) -> None:
    seen: list[str] = []
    came = install_beside("ours", pip_that(lambda: put(site, "more", "2.0"), seen))
    assert came == ["more==2.0"]
    assert seen == ["ours==0.1", "theirs==1.0+cu128", "theirs>=0.5", "more"]


def test_a_package_that_pip_changed_all_the_same_is_named(site: Path) -> None:
    with pytest.raises(PackagesClash, match=r"theirs 1\.0\+cu128 -> 2\.0") as told:
        install_beside("ours", pip_that(lambda: put(site, "theirs", "2.0"), []))
    assert "fresh runtime" in told.value.hint


def test_where_no_choice_of_versions_leaves_all_in_place_nothing_is_forced(site: Path) -> None:
    with pytest.raises(PackagesClash, match="beside what is here"):
        install_beside("ours", pip_that(lambda: None, [], code=1))
    assert installed() == {"ours": "0.1", "theirs": "1.0+cu128"}


def test_versions_that_pip_would_not_read_bind_nothing() -> None:
    odd = {"a": "1!2.0rc1.post3.dev4", "b": "unknown", "c": "3.0-custom build"}
    assert constraints(odd) == "a==1!2.0rc1.post3.dev4\n"


def test_what_collab_needs_is_what_its_wheel_says_without_extras() -> None:
    needs = requirements("collab")
    assert [line for line in needs if line.startswith("hivemind")]
    assert not [line for line in needs if line.startswith(("pytest", "ruff", "wandb"))]
