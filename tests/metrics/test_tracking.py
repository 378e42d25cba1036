"""Figures for a tracking service: nothing waits for it, whatever it does, and it goes on with the same run."""

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from collab.metrics import tracking
from collab.metrics.retried import AGAIN_S, MOST_AGAIN_S, MOST_OWED, Library, Retried
from collab.metrics.services import Trackio, service_for
from collab.metrics.tracking import Say, Service, Tracked, Tracker
from collab.metrics.wandb_run import KEY, MODE, Wandb, trim
from tests.metrics.test_names import REPORT
from tests.metrics.test_store import report

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has given wandb no key."""
    place = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(place))
    for name in (KEY, MODE, "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    return place


class FakeService:
    """Takes everything; can be made to wait or to fail."""

    name = "fake"

    def __init__(self, *, fails_in: str = "", gate: threading.Event | None = None) -> None:
        self.fails_in, self.gate = fails_in, gate
        self.calls: list[Any] = []

    def _note(self, call: str, what: Any) -> None:
        if self.gate is not None:
            assert self.gate.wait(LIMIT_S)
        if call == self.fails_in:
            raise ConnectionError("the key is 0123456789")
        self.calls.append(what)

    def begin(self, tracked: Tracked, say: Say) -> None:
        self._note("begin", tracked.identity)
        say("fake has the figures")

    def log(self, figures: Mapping[str, float]) -> None:
        self._note("log", dict(figures))

    def end(self) -> None:
        self._note("end", "end")


def tracked(directory: Path = Path("/nowhere")) -> Tracked:
    return Tracked(identity="0123", name="my-run", config={"seed": 1}, directory=directory)


class Heard(list[tuple[str, str]]):
    """Texts and hints, and which of the texts is settled by now."""

    settled: str = ""

    def __call__(self, text: str, hint: str = "", settles: str = "") -> None:
        self.append((text, hint))
        self.settled = settles


def tracker(service: Any) -> tuple[Tracker, Heard]:
    said = Heard()
    return Tracker(service, tracked(), said), said


def test_figures_go_by_their_epoch_and_what_waits_is_sent_at_the_end() -> None:
    service = FakeService()
    ours, said = tracker(service)
    ours.observe(REPORT)
    ours.start()
    ours.observe(report(13, 2.0))
    ours.close(LIMIT_S)
    opened, evaluated, first, second, ended = service.calls
    assert (opened, ended) == ("0123", "end")
    assert evaluated == {"epoch": 10.0, "eval_loss": 2.75}
    assert (first["epoch"], first["loss"]) == (12.0, 2.5)
    assert (second["epoch"], second["loss"]) == (13.0, 2.0)
    assert said == [("fake has the figures", "")]


def test_a_service_that_does_not_answer_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "MOST_WAITING", 10)
    gate = threading.Event()
    service = FakeService(gate=gate)
    ours, said = tracker(service)
    ours.start()
    for epoch in range(100):
        ours.observe(report(epoch))
    ours.close(0.0)
    assert [*service.calls, *said] == []
    gate.set()
    ours._thread.join(LIMIT_S)
    assert len(service.calls) <= 12, "of what no queue could hold, the rest is lost"


@pytest.mark.parametrize("where", ["begin", "log", "end"])
def test_a_service_that_fails_is_told_of_without_what_it_says(where: str, caplog: pytest.LogCaptureFixture) -> None:
    service = FakeService(fails_in=where)
    ours, said = tracker(service)
    ours.start()
    ours.observe(report(1))
    ours.close(LIMIT_S)
    ours.observe(report(2))
    assert said[-1] == ("fake takes no more figures: ConnectionError", "the run and its dashboard go on without")
    assert "0123456789" not in caplog.text


def test_a_library_that_is_not_installed_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for service in (Retried(Wandb()), Retried(Trackio())):
        monkeypatch.setitem(sys.modules, service.name, None)
        ours, said = tracker(service)
        ours.start()
        ours.close(LIMIT_S)
        assert said[0][1].startswith(f"pip install {service.name}, beside collab")


def name_of(service: Service | None) -> str:
    return service.name if service is not None else ""


def test_wandb_is_used_where_it_has_a_key_and_nothing_is_sent_otherwise(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    assert service_for("auto") is None
    assert service_for("none") is None
    assert name_of(service_for("wandb")) == "wandb"
    assert name_of(service_for("trackio")) == "trackio"
    monkeypatch.setenv(KEY, "k")
    assert name_of(service_for("auto")) == "wandb"
    monkeypatch.delenv(KEY)
    (home / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password k\n")
    assert name_of(service_for("auto")) == "wandb", "after 'wandb login'"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example:8080")
    assert service_for("auto") is None, "which was for another place"
    monkeypatch.delenv("WANDB_BASE_URL")
    for other in ("no such word", "default login anonymous password me", "machine example.org login u password ä"):
        (home / ".netrc").write_text(other, encoding="latin-1")
        assert service_for("auto") is None, other
    with pytest.raises(ValueError, match="auto, wandb, trackio or none"):
        service_for("tensorboard")


# -- what the libraries are asked for -------------------------------------------------------------------------------


class FakeWandb(ModuleType):
    """As much of wandb as is used, which may be out of reach."""

    def __init__(self, *, is_reached: bool) -> None:
        super().__init__("wandb")
        self.is_reached = is_reached
        self.inits: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []
        self.torn_down = 0
        self.is_broken = False
        """It takes no figures, as when its process has died, until it begins anew."""
        self.takes_disk = True
        self.breaks_after: int | None = None
        """So many figures; None: never."""

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802
        return settings

    def setup(self, settings: Any) -> None:
        assert settings["silent"]

    def teardown(self) -> None:
        self.torn_down += 1

    def log(self, figures: dict[str, float]) -> None:
        if self.is_broken or len(self.logged) == self.breaks_after:
            raise BrokenPipeError("the key is 0123456789")
        self.logged.append(figures)

    def init(self, **known: Any) -> Any:
        self.inits.append(known)
        if known["mode"] == "online" and not self.is_reached:
            raise ConnectionError("not in time")
        if known["mode"] == "offline" and not self.takes_disk:
            raise OSError(28, "No space left on device")
        self.is_broken = False
        return SimpleNamespace(
            define_metric=lambda *_, **__: None,
            log=self.log,
            finish=lambda: None,
            offline=known["mode"] == "offline",
            url="https://wandb.example/run",
        )


@pytest.mark.parametrize(
    ("key", "is_reached", "modes", "words"),
    [
        ("k", True, ["online"], "https://wandb.example/run"),
        ("k", False, ["online", "offline"], "cannot be reached"),
        ("", True, ["offline"], "wandb has the figures: in "),
    ],
)
def test_wandb_goes_on_with_one_run_and_falls_back_to_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str, is_reached: bool, modes: list[str], words: str
) -> None:
    library = FakeWandb(is_reached=is_reached)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv(MODE, raising=False)
    monkeypatch.setenv(KEY, key)
    service, said = Retried(Wandb()), Heard()
    service.begin(tracked(tmp_path), said)
    ((text, hint),) = said
    assert words in text
    assert (f"wandb sync {tmp_path / 'wandb' / 'offline-run-*'}" in hint) == (len(modes) == 2)
    service.log({"epoch": 3.0, "loss": 1.0})
    service.end()
    assert [known["mode"] for known in library.inits] == modes
    assert {(known["id"], known["resume"]) for known in library.inits} == {("0123", "allow")}
    assert library.torn_down == len(modes) - 1
    for known in library.inits:
        private = {"x_disable_meta", "x_disable_machine_info", "x_disable_stats", "disable_git", "disable_code"}
        assert {name for name, value in known["settings"].items() if value is True} == {"silent", *private}
        assert known["settings"]["x_save_requirements"] is False
        assert known["settings"]["host"] == "collab", "not this machine's name"
    assert library.logged == [{"epoch": 3.0, "loss": 1.0}]


def test_wandb_gets_what_it_has_missed_when_it_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = FakeWandb(is_reached=False)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv(MODE, raising=False)
    monkeypatch.setenv(KEY, "k")
    now_s, said = 0.0, Heard()
    service = Retried(Wandb(), lambda: now_s)
    service.begin(tracked(tmp_path), said)
    for epoch in range(3):
        service.log({"epoch": float(epoch)})
    assert len(library.inits) == 2, "it is not tried at each step"
    now_s = AGAIN_S
    service.log({"epoch": 3.0})
    assert [known["mode"] for known in library.inits[2:]] == ["online", "offline"]
    now_s += AGAIN_S
    service.log({"epoch": 4.0})
    assert len(library.inits) == 4, "later and later"
    library.logged.clear()
    library.is_reached = True
    now_s += AGAIN_S
    service.log({"epoch": 5.0})
    assert library.logged == [{"epoch": float(epoch)} for epoch in range(6)]
    assert [text for text, _ in said[1:]] == ["wandb has the figures: https://wandb.example/run"]
    assert said.settled == said[0][0]
    now_s += MOST_AGAIN_S
    service.log({"epoch": 6.0})
    assert library.logged[6:] == [{"epoch": 6.0}]
    assert len(library.inits) == 5


@pytest.mark.parametrize("takes_disk", [True, False])
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_wandb_that_fails_later_is_tried_again_and_gets_what_it_has_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str, takes_disk: bool
) -> None:
    library = FakeWandb(is_reached=True)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setenv(MODE, mode)
    now_s, said = 0.0, Heard()
    service = Retried(Wandb(), lambda: now_s)
    service.begin(tracked(tmp_path), said)
    service.log({"epoch": 0.0})
    library.is_broken, library.is_reached, library.takes_disk = True, False, takes_disk
    for epoch in range(1, 4):
        service.log({"epoch": float(epoch)})
    assert [known["mode"] for known in library.inits] == [mode, "offline"], "it is not tried at each step"
    assert library.logged == [{"epoch": float(epoch)} for epoch in range(4 if takes_disk else 1)]
    assert said[1][0].startswith("wandb takes no figures (BrokenPipeError); figures are kept ")
    assert ("on this disk" in said[1][0]) is takes_disk
    library.logged.clear()
    library.is_reached = library.takes_disk = True
    now_s = AGAIN_S
    service.log({"epoch": 4.0})
    first = 4 if mode == "offline" and takes_disk else 1
    assert library.logged == [{"epoch": float(epoch)} for epoch in range(first, 5)], "each once, and in its place"
    assert library.inits[-1]["mode"] == mode
    assert said[2][0].startswith("wandb has the figures: ")
    assert said.settled == said[1][0]
    service.log({"epoch": 5.0})
    service.end()
    assert library.logged[-1] == {"epoch": 5.0}
    assert "0123456789" not in str(said)


@pytest.mark.parametrize("kind", [Wandb, Trackio])
def test_what_was_sent_before_it_failed_again_is_not_sent_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: type[Library]
) -> None:
    wandb, trackio = FakeWandb(is_reached=False), FakeTrackio(is_well=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    monkeypatch.setenv(MODE, "online")
    now_s = 0.0
    service = Retried(kind(), lambda: now_s)
    service.begin(tracked(tmp_path), Heard())
    for epoch in range(4):
        service.log({"epoch": float(epoch)})
    for library in (wandb, trackio):
        library.logged.clear()
    wandb.is_reached = trackio.is_well = True
    wandb.takes_disk, wandb.breaks_after, trackio.breaks_after = False, 2, 2
    now_s = AGAIN_S
    service.log({"epoch": 4.0})
    taken = [*wandb.logged, *trackio.logged]
    assert taken == [{"epoch": 0.0}, {"epoch": 1.0}]
    wandb.breaks_after = trackio.breaks_after = None
    now_s += 2 * AGAIN_S
    service.log({"epoch": 5.0, "loss": 1.0})
    taken = [*wandb.logged, *trackio.logged]
    assert taken == [*({"epoch": float(epoch)} for epoch in range(5)), {"epoch": 5.0, "loss": 1.0}]


def test_wandb_that_fails_each_time_it_gets_what_it_has_missed_is_tried_later_and_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = FakeWandb(is_reached=True)
    monkeypatch.setattr(library, "log", lambda _: library.logged[0])  # there is none
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setenv(MODE, "online")
    now_s, said = 0.0, Heard()
    service = Retried(Wandb(), lambda: now_s)
    service.begin(tracked(tmp_path), said)
    tries_s = list[float]()
    while now_s < 3 * MOST_AGAIN_S:
        begun = len(library.inits)
        service.log({"epoch": now_s})
        tries_s += [now_s] * (len(library.inits) - begun > 0)
        now_s += AGAIN_S
    assert [round(one / AGAIN_S) for one in tries_s] == [0, 1, 3, 7, 15, 31, 55]
    assert len(said) == 2, "once for where it is, once for what is wrong"


def test_of_what_wandb_has_missed_the_newest_epochs_are_kept_however_often_each_was_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = FakeWandb(is_reached=False)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.delenv(MODE, raising=False)
    monkeypatch.setenv(KEY, "k")
    now_s = 0.0
    service = Retried(Wandb(), lambda: now_s)
    service.begin(tracked(tmp_path), Heard())
    for epoch in range(MOST_OWED + 10):
        for name in ("loss", "round_s", "trainers"):
            service.log({"epoch": float(epoch), name: 1.0})
    library.logged.clear()
    library.is_reached, now_s = True, AGAIN_S
    service.log({"epoch": MOST_OWED + 9.0, "hub_epoch": 7.0})
    assert [figures["epoch"] for figures in library.logged] == [float(epoch) for epoch in range(10, MOST_OWED + 10)]
    assert all({"loss", "round_s", "trainers"} <= set(figures) for figures in library.logged)
    assert library.logged[-1]["hub_epoch"] == 7.0


def test_what_earlier_lives_have_left_on_the_disk_is_bounded(tmp_path: Path) -> None:
    for age, name in enumerate(["run-newest", "offline-run-b", "run-c", "offline-run-oldest"]):
        life = tmp_path / name / "files"
        life.mkdir(parents=True)
        (life / "figures").write_bytes(bytes(1000))
        os.utime(life.parent, (1e9 - age, 1e9 - age))
    (tmp_path / "latest-run").symlink_to("run-newest")
    (tmp_path / "debug.log").write_bytes(bytes(5000))
    trim(tmp_path, 2500)
    assert {path.name for path in tmp_path.iterdir()} == {"run-newest", "offline-run-b", "latest-run", "debug.log"}
    trim(tmp_path, 500)
    assert {path.name for path in tmp_path.iterdir()} == {"run-newest", "latest-run", "debug.log"}
    trim(tmp_path / "nowhere", 500)


class FakeTrackio(ModuleType):
    """As much of trackio as is used, which may fail."""

    def __init__(self, *, is_well: bool = True) -> None:
        super().__init__("trackio")
        self.is_well = is_well
        self.inits: list[dict[str, Any]] = []
        self.logged: list[dict[str, float]] = []
        self.steps: list[int] = []
        self.breaks_after: int | None = None
        """So many figures; None: never."""

    def init(self, **known: Any) -> None:
        sys.stdout.write("created")
        self.inits.append(known)
        if not self.is_well:
            raise OSError(28, "No space left on device")

    def log(self, figures: dict[str, float], step: int) -> None:
        if not self.is_well or len(self.logged) == self.breaks_after:
            raise OSError(28, "No space left on device")
        self.logged.append(figures)
        self.steps.append(step)

    def finish(self) -> None:
        sys.stdout.write("finished")


def test_trackio_goes_on_with_one_run_and_prints_no_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library, said = FakeTrackio(), Heard()
    monkeypatch.setitem(sys.modules, "trackio", library)
    service = Retried(Trackio())
    service.begin(tracked(), said)
    service.log({"epoch": 3.0, "loss": 1.0})
    service.end()
    assert (library.inits[0]["name"], library.inits[0]["resume"]) == ("my-run-0123", "allow")
    assert (library.logged, library.steps) == ([{"epoch": 3.0, "loss": 1.0}], [3])
    assert said == [("trackio has the figures: trackio show --project collab", "")]
    assert capsys.readouterr().out == ""


def test_trackio_that_fails_is_tried_again_and_gets_what_it_has_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    library, said, now_s = FakeTrackio(), Heard(), 0.0
    monkeypatch.setitem(sys.modules, "trackio", library)
    service = Retried(Trackio(), lambda: now_s)
    service.begin(tracked(), said)
    service.log({"epoch": 0.0})
    library.is_well = False
    for epoch in (1.0, 2.0):
        service.log({"epoch": epoch})
    assert len(library.inits) == 1, "it is not tried at each step"
    assert said[1][0] == "trackio takes no figures (OSError); figures are kept in memory meanwhile"
    library.is_well, now_s = True, AGAIN_S
    service.log({"epoch": 3.0})
    service.log({"epoch": 4.0})
    assert library.steps == [0, 1, 2, 3, 4]
    assert said.settled == said[1][0]


def test_what_the_environment_says_of_wandbs_mode_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = FakeWandb(is_reached=True)
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setenv(MODE, "offline")
    monkeypatch.setenv(KEY, "k")
    Retried(Wandb()).begin(tracked(tmp_path), Heard())
    assert library.inits[0]["mode"] == "offline"
