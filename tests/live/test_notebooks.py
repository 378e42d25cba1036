"""The notebooks as people run them: in a kernel, against real peers; a command that fails fails its cell."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.live.processes import LIMIT_S, live_swarm, processes_about, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = """\
run_id: live-notebooks
microbatch_size: 8
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 64}
checkpoints: {every_epochs: 1000, keep: 1}
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels find this checkout, and leave nothing in the user's home."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


class Opened:
    """One notebook, with values for its form."""

    def __init__(self, notebook: str, folder: Path, **form: object) -> None:
        self.book = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4)
        place = 1 + next(i for i, cell in enumerate(self.book.cells) if "parameters" in cell.metadata.get("tags", []))
        text = "\n".join(f"{key} = {value!r}" for key, value in form.items())
        self.book.cells.insert(place, nbformat.v4.new_code_cell(text))
        folder.mkdir(exist_ok=True)
        self.client = NotebookClient(
            self.book, timeout=LIMIT_S, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
        )

    def add(self, source: str) -> None:
        """One more cell, at the end."""
        self.book.cells.append(nbformat.v4.new_code_cell(source))

    def run(self, meanwhile: Callable[[], Any] | None = None) -> None:
        """All cells, one after the other.

        Args:
            meanwhile: makes what happens beside them.
        """

        async def all_cells() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.client.async_execute())
                if meanwhile is not None:
                    tasks.create_task(meanwhile())

        asyncio.run(all_cells())

    def shown(self, cell_id: str) -> str:
        """What a reader sees below a cell."""
        cell = next(cell for cell in self.book.cells if cell.id == cell_id)
        return shown(cell)


def shown(cell: Any) -> str:
    return "\n".join(output.text if "text" in output else output.data["text/plain"] for output in cell.outputs)


def test_the_colab_notebook_shows_training_as_it_goes_and_its_stop_button_leaves_cleanly(tmp_path: Path) -> None:
    with live_swarm(tmp_path / "run", RUN) as swarm:
        backbone = swarm.backbone()
        opened = Opened("join_colab", tmp_path / "colab", invite=swarm.invite.read_text(), name="Anna")

        async def stop_when_it_has_trained() -> None:
            async with asyncio.timeout(LIMIT_S):
                while "you gave 100 %" not in opened.shown("join"):
                    await asyncio.sleep(0.05)
            await opened.client.km.interrupt_kernel()

        opened.run(stop_when_it_has_trained)
        assert "installed: nothing was missing" in opened.shown("install")
        joined = opened.shown("join")
        assert "leaving: finishing what is under way" in joined
        assert re.search(r"left at epoch \d+: you contributed \d+ samples", joined)
        assert "reach: client" in joined
        wait_until(lambda: backbone.epoch > 0, "the backbone to have heard of it", backbone)


def test_the_kaggle_notebook_carries_on_as_the_same_peer_and_a_failing_command_fails_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAB_JOIN_EPOCHS", "2")
    with live_swarm(tmp_path / "run", RUN) as swarm:
        swarm.backbone()
        word = swarm.invite.read_text()
        opened = Opened("join_kaggle", tmp_path / "kaggle", invite=word, name="Bob", keep=str(tmp_path / "working"))
        again = next(cell for cell in opened.book.cells if cell.id == "join").source
        next_disk = f"import os; os.environ['XDG_DATA_HOME'] = {str(tmp_path / 'next')!r}"
        opened.add(f"{next_disk}\n{again}")
        opened.add("notebook.run('status')")
        with pytest.raises(ExceptionGroup) as failed:
            opened.run()
        (error,) = failed.value.exceptions
        assert isinstance(error, CellExecutionError)
        assert error.ename == "CommandFailed"
        assert "Missing argument" in error.evalue
        lives = [opened.shown("join"), shown(opened.book.cells[-2])]
        names = [re.findall(r"connected as (\w+)", life) for life in lives]
        assert names[0] == names[1] != []
        assert ["left at epoch" in life for life in lives] == [True, True]
        kept = {path.name: path.stat().st_size for path in (tmp_path / "working" / "live-notebooks").iterdir()}
        assert set(kept) <= {".lock", "identity.key", "agreed.json", "backbones.json", "traffic.json"}
        assert sum(kept.values()) < 4096, "a Drive keeps all that was ever written there"
        assert list((tmp_path / "next").rglob("identity.key")), "which is what was brought"


def test_a_run_is_organised_from_its_file_to_a_model_that_transformers_loads(tmp_path: Path) -> None:
    small = {"megabytes": 1, "layers": 1, "width": 32, "target_batch": 16, "steps": 3}
    opened = Opened("organise_a_run", tmp_path, directory=str(tmp_path / "my-run"), **small)
    opened.run()
    assert "anna-2" in opened.shown("status")
    assert "the run ends at epoch" in opened.shown("end")
    assert re.search(r"epoch \d+: loss on held-out text \d", opened.shown("model"))
    wait_until(lambda: not processes_about(tmp_path / "my-run"), "every peer to be gone")


def test_strategies_are_compared_in_a_table_and_in_pictures(tmp_path: Path) -> None:
    opened = Opened("strategies_compared", tmp_path, minutes=0.5, homes=2, directory="tried")
    opened.run()
    assert re.findall(r"^ *(dedloc|dts|diloco) ", opened.shown("simulate"), re.MULTILINE) == ["dedloc", "dts", "diloco"]
    curves = next(cell for cell in opened.book.cells if cell.id == "curves")
    assert [output.data["text/plain"] for output in curves.outputs] == [
        "loss_by_bytes.svg", "loss_by_samples.svg", "loss_by_time.svg",
    ]  # fmt: skip
