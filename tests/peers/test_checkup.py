"""What the doctor makes of each fault: a verdict, and a remedy that can be followed."""

import numpy as np
import pytest

from collab.compression.base import Buffer, Codec, all_codecs
from collab.errors import BootstrapFailed, PortTaken
from collab.swarm.reachability import OPEN_A_PORT, Verdict as ReachVerdict
from collab.types import Reachability, Vector
from peers import checkup
from peers.checkup import Devices, Finding, Outcome
from peers.free_memory import FreeMemory

GB = 1_000_000_000


def outcome_of(finding: Finding) -> str:
    """With what everybody is owed whose machine has something to be mended."""
    if finding.outcome is Outcome.PROBLEM:
        assert finding.remedy
    return finding.outcome.value


@pytest.mark.parametrize(
    ("python", "platform", "machine", "outcome"),
    [
        ((3, 11), "linux", "x86_64", "ok"),
        ((3, 13), "linux", "x86_64", "ok"),
        ((3, 10), "linux", "x86_64", "problem"),
        ((3, 14), "linux", "x86_64", "problem"),
        ((3, 12), "darwin", "arm64", "problem"),
        ((3, 12), "win32", "AMD64", "problem"),
        ((3, 12), "linux", "aarch64", "problem"),
    ],
)
def test_only_systems_that_can_run_it_are_well(
    python: tuple[int, int], platform: str, machine: str, outcome: str
) -> None:
    assert outcome_of(checkup.system(python, platform, machine)) == outcome


def test_each_package_that_is_missing_or_too_old_is_named() -> None:
    required = ["torch>=2.4", "numpy>=2", "rich>=13", 'tomli>=1; python_version < "3"']
    well = checkup.versions(required, {"torch": "2.13.0+cpu", "numpy": "2.4.6", "rich": "15.0.0"})
    assert outcome_of(well) == "ok"
    ill = checkup.versions(required, {"torch": "2.1.0", "numpy": None, "rich": "15.0.0"})
    assert outcome_of(ill) == "problem"
    assert "torch 2.1.0 is there, >=2.4 is needed" in ill.text
    assert "numpy is missing" in ill.text
    assert "rich" not in ill.text
    assert outcome_of(checkup.versions(None, {"torch": "2.13.0"})) == "note"


def test_a_gpu_that_torch_does_not_use_is_told_of() -> None:
    assert outcome_of(checkup.device(Devices(gpus=("T4, 15.8 GB",), has_driver=True))) == "ok"
    assert outcome_of(checkup.device(Devices(processors=8))) == "ok"
    unused = checkup.device(Devices(processors=8, has_driver=True))
    assert outcome_of(unused) == "note"
    assert "CUDA" in unused.remedy
    assert outcome_of(checkup.device(Devices(error="libcudart.so.12 not found"))) == "problem"
    broken = checkup.device(Devices(gpus=("K80, 11.4 GB",), has_driver=True, trouble="no kernel", remedy="another one"))
    assert outcome_of(broken) == "note", "it can take part all the same"
    assert broken.text == "K80, 11.4 GB: no kernel; a peer would compute on the processor"
    assert broken.remedy == "another one"


@pytest.mark.parametrize(("free", "outcome"), [(0.5, "problem"), (1.0, "note"), (8.0, "ok"), (None, "note")])
def test_too_little_memory_is_a_problem(free: float | None, outcome: str) -> None:
    there = None if free is None else FreeMemory(free_bytes=int(free * GB), is_limited=False)
    assert outcome_of(checkup.memory(there)) == outcome


def test_memory_that_a_container_limits_is_told_as_the_container_s() -> None:
    finding = checkup.memory(FreeMemory(free_bytes=int(0.4 * GB), is_limited=True))
    assert finding.outcome is Outcome.PROBLEM
    assert "0.4 GB of memory are free within the limit of this container" in finding.text
    assert "limit raised" in finding.remedy


@pytest.mark.parametrize(("free", "outcome"), [(0.1, "problem"), (1.0, "note"), (50.0, "ok")])
def test_a_full_disk_is_a_problem(free: float, outcome: str) -> None:
    finding = checkup.disk("/data", checkup.OTHER_DATA, int(free * GB))
    assert outcome_of(finding) == outcome
    assert "/data" in finding.text


def test_a_disk_that_cannot_be_written_is_a_problem() -> None:
    assert outcome_of(checkup.disk("/data", checkup.OTHER_DATA, None, "Read-only file system")) == "problem"


def test_a_clock_that_is_off_is_corrected_and_told_of() -> None:
    assert outcome_of(checkup.clock(0.4)) == "ok"
    for offset_s, way in ((-40.0, "fast"), (40.0, "slow")):
        finding = checkup.clock(offset_s)
        assert outcome_of(finding) == "note"
        assert f"40.0 s {way}" in finding.text
    assert outcome_of(checkup.clock(None)) == "note"


def test_a_port_that_is_taken_and_a_run_that_does_not_answer_come_with_their_own_remedies() -> None:
    for error in (
        PortTaken("cannot listen on 0.0.0.0:4001: Address already in use", hint="choose another --port"),
        BootstrapFailed("none of the 1 bootstrap addresses answered", hint="is the backbone running?"),
    ):
        finding = checkup.failed("ports", error)
        assert outcome_of(finding) == "problem"
        assert (finding.text, finding.remedy) == (error.message, error.hint)


def test_a_machine_behind_a_router_can_take_part_and_hears_what_would_make_it_more_useful() -> None:
    hidden = ReachVerdict(reach=Reachability.CLIENT, text="others cannot dial this machine", hint=OPEN_A_PORT)
    finding = checkup.reach(hidden)
    assert outcome_of(finding) == "note"
    assert finding.remedy == OPEN_A_PORT
    assert outcome_of(checkup.reach(ReachVerdict(reach=Reachability.DIRECT, text="others can dial it"))) == "ok"
    assert outcome_of(checkup.reach(None)) == "note"


def test_a_thin_line_is_told_of_and_one_that_nobody_measured_too() -> None:
    assert outcome_of(checkup.bandwidth(2.5e6, 12.5e6, is_asked=True)) == "ok"
    assert outcome_of(checkup.bandwidth(5e4, 12.5e6, is_asked=True)) == "note"
    assert "rounds will" in checkup.bandwidth(None, None, is_asked=True).text
    assert "invite" in checkup.bandwidth(None, None, is_asked=False).text


class Broken:
    """A codec whose vectors come back as something else."""

    name, is_exact = "int8", False

    def __init__(self, back: Vector | Exception) -> None:
        self._back = back

    def encoded_bytes(self, num_elements: int) -> int:
        return num_elements

    def encode(self, values: Vector) -> Buffer:
        return b""

    def decode(self, data: Buffer, num_elements: int) -> Vector:
        if isinstance(self._back, Exception):
            raise self._back
        return self._back


@pytest.mark.parametrize(
    "back",
    [
        np.zeros(checkup.SAMPLE_ELEMENTS, np.float32),
        np.full(checkup.SAMPLE_ELEMENTS, np.nan, np.float32),
        TypeError("unsupported operand"),
    ],
)
def test_a_codec_that_does_not_bring_vectors_back_is_named(back: Vector | Exception) -> None:
    codec: Codec = Broken(back)
    finding = checkup.codecs([codec])
    assert outcome_of(finding) == "problem"
    assert "int8" in finding.text


def test_the_codecs_of_this_package_are_well() -> None:
    assert outcome_of(checkup.codecs(all_codecs())) == "ok"
