"""What collab asks for is what hosted notebooks have: a higher bound in setup.cfg would shut them out."""

import configparser
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from check_notebook_machines import MACHINES, NOT_KNOWN, filled_in  # noqa: E402 - a program, not a package

THEIRS = "protobuf>=5.29,<6"


@pytest.mark.parametrize("name", MACHINES)
def test_the_versions_of_a_hosted_machine_are_within_what_collab_asks_for(name: str) -> None:
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    asked = [Requirement(line) for line in settings["options"]["install_requires"].split("\n") if line]
    versions = {package.lower(): version for package, version in MACHINES[name].versions.items()}
    known = [need for need in asked if need.name.lower() in versions]
    assert {need.name.lower() for need in asked} - {need.name.lower() for need in known} == NOT_KNOWN
    assert [str(need) for need in known if versions[need.name.lower()] not in need.specifier] == []
    assert versions["protobuf"] in Requirement(THEIRS).specifier, "what the check is about"


@pytest.mark.parametrize("name", MACHINES)
def test_a_form_is_filled_in_after_its_own_cell(name: str) -> None:
    book = filled_in(MACHINES[name].notebook, {"invite": "it's a word"})
    place = next(place for place, cell in enumerate(book.cells) if cell.id == "form")
    assert book.cells[place + 1].source == 'invite = "it\'s a word"'
