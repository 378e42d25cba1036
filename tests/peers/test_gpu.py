"""Which device a peer computes on, whether it can, and what is said where it cannot."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from collab.config import parse_run
from collab.data.made_once import patiently
from collab.data.sources import unseen
from collab.errors import BrokenOff, CollabError, ConfigError, DeviceFull
from collab.metrics.records import Notice
from collab.swarm.bundle import Bundle
from collab.types import PeerId, Reachability
from peers import doctor, gpu, machine
from peers.checkup import Outcome
from peers.gpu import choose_device, gpu_of, keep_within, try_out
from peers.machine import Beginning, build_trainer, find_device
from peers.places import DataDir
from tests.fakes import FakeNetwork, FakeObserver, make_ports, run

NO_KERNEL = (
    "CUDA error: no kernel image is available for execution on the device\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace may be incorrect."
)
OF_OTHERS = ConfigError("device 'cuda:0' cannot be used: no kernel image is available", hint=gpu.OTHER_BUILD)
TAKEN = DeviceFull("device 'cuda:0' cannot be used: CUDA error: out of memory", hint="end what else uses it")


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """A machine with two GPUs of 16 GB; what torch was told to keep to on which, once its own checks were passed."""
    told = list[tuple[float, int]]()
    two_cards = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(name="T4", total_memory=16_000_000_000),
    }
    for name, answer in two_cards.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda.memory, "_lazy_init", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_setMemoryFraction", lambda *args: told.append(args), raising=False)
    monkeypatch.setattr(gpu, "try_out", lambda _: None)
    return told


def fails(monkeypatch: pytest.MonkeyPatch, error: CollabError) -> None:
    """Every GPU does, when it is tried."""

    def tried(device: torch.device) -> None:
        if device.type == "cuda":
            raise error

    monkeypatch.setattr(gpu, "try_out", tried)


@pytest.mark.parametrize(("wanted", "number"), [(None, 0), ("cuda", 0), ("cuda:1", 1)])
def test_the_memory_of_a_gpu_is_limited_whoever_chose_it(
    limits: list[tuple[float, int]], wanted: str | None, number: int
) -> None:
    keep_within(gpu_of(choose_device(wanted)), 4.0)
    assert limits == [(0.25, number)]


# -- a trial -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), DeviceFull),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be ..."), DeviceFull),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), DeviceFull),
        (RuntimeError(NO_KERNEL), ConfigError),
        (AssertionError("Torch not compiled with CUDA enabled"), ConfigError),
    ],
)
def test_a_device_that_fails_is_refused_in_a_line_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[CollabError]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch.autograd, "grad", failing)
    with pytest.raises(kind) as caught:
        try_out(torch.device("cpu"))
    assert caught.value.message == f"device 'cpu' cannot be used: {str(error).splitlines()[0]}"
    assert "--device cpu" in caught.value.hint


def test_a_processor_passes_and_what_computes_nothing_does_not() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="'meta' cannot be used"):
        choose_device("meta")
    with pytest.raises(ConfigError, match="'no such thing' cannot be used"):
        choose_device("no such thing")


def options(directory: Path, device: str | None = None, gpu_memory_gb: float | None = None) -> Any:
    return SimpleNamespace(
        device=device, gpu_memory_gb=gpu_memory_gb, allowed_modules=(), name="me", epochs=None,
        data_dir=DataDir(directory), wants_credit=False, microbatch_size=None,
    )  # fmt: skip


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("error", [OF_OTHERS, TAKEN])
def test_where_nobody_has_named_a_gpu_that_fails_the_processor_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: CollabError
) -> None:
    assert find_device(options(tmp_path), Beginning()) == (torch.device("cuda", 0), None)
    fails(monkeypatch, error)
    assert find_device(options(tmp_path), Beginning()) == (torch.device("cpu"), error)
    for wish in ({"device": "cuda"}, {"gpu_memory_gb": 4.0}):
        with pytest.raises(type(error)):
            find_device(options(tmp_path, **wish), Beginning())  # type: ignore[arg-type]


@pytest.mark.usefixtures("limits")
def test_a_gpu_that_it_had_before_a_pause_and_others_have_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, TAKEN)
    with pytest.raises(DeviceFull):
        find_device(options(tmp_path), Beginning(had_gpu=True))
    fails(monkeypatch, OF_OTHERS)
    assert find_device(options(tmp_path), Beginning(had_gpu=True)) == (torch.device("cpu"), OF_OTHERS)


# -- what is told ------------------------------------------------------------------------------------------------------


def building(
    directory: Path, monkeypatch: pytest.MonkeyPatch, beginning: Beginning | None = None
) -> FakeObserver:
    """What is observed while a trainer is built, whose network is none."""
    follower = SimpleNamespace(teller=SimpleNamespace(follow=lambda _: None))
    monkeypatch.setattr(machine, "Participant", lambda *_: follower)
    monkeypatch.setattr(machine, "Trainer", lambda *_, **__: None)
    bundle = Bundle(parse_run("{run_id: run, task: {name: image_classification}}", origin="the test"), {})

    async def main() -> FakeObserver:
        async with FakeNetwork() as network:
            ports = make_ports(network.join(PeerId("me")))
            verdict = SimpleNamespace(reach=Reachability.DIRECT)
            started: Any = SimpleNamespace(ports=ports, identity=None, verdict=verdict, reaching=None)
            await build_trainer(started, bundle, options(directory), beginning or Beginning())
            observer = ports.observer
            assert isinstance(observer, FakeObserver)
            return observer

    return run(main())


@pytest.mark.usefixtures("limits")
def test_its_owner_is_told_that_a_machine_computes_on_its_processor_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, OF_OTHERS)
    (notice,) = building(tmp_path, monkeypatch).events
    assert isinstance(notice, Notice)
    assert notice.is_problem
    assert "computes on its processor" in notice.text
    assert "no kernel image" in notice.text
    assert notice.hint == gpu.OTHER_BUILD


def test_a_machine_without_a_gpu_is_told_nothing_and_a_model_that_does_not_fit_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert building(tmp_path, monkeypatch).events == []

    half_built = list[weakref.ref[torch.nn.Module]]()

    def full(*_: object) -> None:
        model = torch.nn.Linear(2, 2)
        half_built.append(weakref.ref(model))
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(machine, "build_replica", full)
    with pytest.raises(ExceptionGroup) as caught:
        building(tmp_path, monkeypatch)
    (error,) = caught.value.exceptions
    assert isinstance(error, DeviceFull)
    assert "the model does not fit" in error.message
    assert half_built[0]() is None, "who waits for memory holds none"


@pytest.mark.parametrize("looks", [0, 1])
def test_a_pause_while_it_is_built_leaves_nothing_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """Asked for while the data are read, or while the model is built."""
    built, released, answers = list[weakref.ref[torch.nn.Module]](), list[bool](), iter([False] * looks + [True])

    def build(*_: object) -> torch.nn.Module:
        model = torch.nn.Linear(2, 2)
        built.append(weakref.ref(model))
        return model

    monkeypatch.setattr(machine, "find_device", lambda *_: (torch.device("cpu"), None))
    monkeypatch.setattr(machine, "build_replica", build)
    monkeypatch.setattr(machine, "release_gpu", lambda: released.append(built[0]() is None))
    monkeypatch.setattr(machine, "ParticipantSettings", lambda **_: pytest.fail("the owner wants the machine back"))
    building(tmp_path, monkeypatch, Beginning(is_over=lambda: next(answers)))
    assert len(built) == looks
    assert released == [True] * looks


def test_a_pause_while_text_is_read_for_it_breaks_that_off_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Text:
        overseen = staticmethod(unseen)

        @property
        def num_samples(self) -> int:
            return len(list(self.overseen(iter(["a text"]))))

    def overseen(_texts: Iterator[str]) -> Iterator[str]:
        raise BrokenOff("this machine is wanted back")

    monkeypatch.setattr(machine, "build_task", lambda *_, **__: Text())
    monkeypatch.setattr(machine, "build_replica", lambda *_: pytest.fail("the owner wants the machine back"))
    assert building(tmp_path, monkeypatch, Beginning(overseen=overseen)).events == []


def test_who_is_to_hear_that_text_is_waited_for_hears_so_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Text:
        waits = staticmethod(patiently)

        @property
        def num_samples(self) -> int:
            self.waits(tmp_path / "tokens.lock")
            return 1

    told = list[Path]()
    monkeypatch.setattr(machine, "build_task", lambda *_, **__: Text())
    building(tmp_path, monkeypatch, Beginning(waits=told.append, is_over=lambda: True))
    assert told == [tmp_path / "tokens.lock"]


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(("error", "outcome"), [(None, Outcome.OK), (OF_OTHERS, Outcome.NOTE)])
def test_the_doctor_tries_the_gpu_that_would_be_taken(
    monkeypatch: pytest.MonkeyPatch, error: CollabError | None, outcome: Outcome
) -> None:
    if error is not None:
        fails(monkeypatch, error)
    finding = doctor.look_at_device()
    assert finding.outcome is outcome
    assert "T4, 16.0 GB" in finding.text
    assert ("no kernel image" in finding.text) is (error is not None)
    assert finding.remedy == ("" if error is None else gpu.OTHER_BUILD)


@pytest.mark.usefixtures("limits")
def test_a_driver_that_is_too_old_for_this_torch_is_a_note_as_join_computes_on_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_old(_: int) -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # though the driver counts two cards
    monkeypatch.setattr(torch.cuda, "get_device_properties", too_old)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    finding = doctor.look_at_device()
    assert choose_device(None) == torch.device("cpu")
    assert finding.outcome is Outcome.NOTE
    assert "though a driver for one is here" in finding.text
    assert "newer driver" in finding.remedy


@pytest.mark.usefixtures("limits")
def test_a_second_card_that_is_broken_is_named_beside_the_first_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(number: int) -> SimpleNamespace:
        if number:
            raise RuntimeError("CUDA error: unknown error\nCUDA kernel errors might be reported elsewhere")
        return SimpleNamespace(name="T4", total_memory=16_000_000_000)

    monkeypatch.setattr(torch.cuda, "get_device_properties", told)
    finding = doctor.look_at_device()
    assert finding.outcome is Outcome.OK
    assert finding.text == "T4, 16.0 GB; GPU 1, of which torch says 'CUDA error: unknown error'"
