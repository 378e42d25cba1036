#!/usr/bin/env python3
"""Whether the notebooks work beside what Colab and Kaggle have installed, as far as can be emulated.

    python scripts/check_notebook_machines.py [--machine colab] [--folder DIR] [--python PATH] [--torch-of-here]
        [--only-resolve]

For each machine an environment of its Python is made with the versions below, which takes minutes, gigabytes and a
package index. Then, one JSON line for each machine:

    emulated      Python's and torch's version there
    would_change  what pip would replace if it were left alone: the reason for the file of constraints
    came          what the notebook's own install cell has added
    changed       what it has replaced: nothing, or the check fails
    joined        what its last cell says: it joined a run on this machine and contributed to two steps
    seconds       of each notebook, from the first cell to the last: that for volunteers, which installs, and those for
                  organisers, small; as they were executed they stay in DIR/MACHINE

``--torch-of-here`` emulates with the Python and the PyTorch of this environment, so that no other one is fetched, which
is gigabytes: so tests do it. ``--only-resolve`` asks pip for its plan under the constraints, and installs little.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import nbformat
from bench_processes import Household, await_invite
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
COMMON = {  # of Colab's published list of June 2026: what collab and its dependencies could want to replace
    "absl-py": "1.4.0", "aiohttp": "3.14.0", "anyio": "4.13.0", "certifi": "2026.5.20", "cffi": "2.0.0",
    "click": "8.4.1", "cryptography": "48.0.0", "datasets": "4.0.0", "dill": "0.3.8", "filelock": "3.29.0",
    "fsspec": "2025.3.0",
    "google-auth": "2.47.0", "googleapis-common-protos": "1.75.0", "grpcio": "1.81.0", "grpcio-status": "1.71.2",
    "hf-xet": "1.5.0", "httpx": "0.28.1", "huggingface_hub": "1.17.0", "idna": "3.18", "ipykernel": "6.17.1",
    "ipython": "7.34.0", "joblib": "1.5.3", "jupyter_client": "7.4.9", "mmh3": "5.2.1", "msgpack": "1.1.2",
    "multiprocess": "0.70.16", "packaging": "26.2", "proto-plus": "1.28.0", "psutil": "5.9.5",
    "pyarrow": "18.1.0", "pydantic": "2.12.3", "Pygments": "2.20.0", "PyYAML": "6.0.3", "pyzmq": "26.2.1",
    "regex": "2025.11.3", "requests": "2.32.4", "rich": "13.9.4", "scikit-learn": "1.6.1",
    "scipy": "1.16.3",
    "setuptools": "75.2.0", "sortedcontainers": "2.4.0", "tokenizers": "0.22.2", "torch": "2.11.0", "tornado": "6.5.1",
    "tqdm": "4.67.3", "traitlets": "5.7.1", "typer": "0.25.1", "typing_extensions": "4.15.0", "urllib3": "2.5.0",
    "uvloop": "0.22.1", "xxhash": "3.7.0",
}  # fmt: skip
NOT_KNOWN = {"base58", "blake3", "cachetools", "hivemind", "pynacl", "starlette", "uvicorn"}
"""What collab asks for, and these machines do not have, or in a version that is not known: the notebook adds it."""
FOR_5_9 = {"transformers": "5.9.0", "safetensors": "0.7.0"}
FOR_5_15 = {"transformers": "5.15.0", "safetensors": "0.8.0"}
FOR_TORCH_OF_HERE = {"setuptools": "77.0.3"}
"""Torch 2.13 wants no older one; Colab's torch 2.11 does with 75.2."""
ORGANISERS: dict[str, dict[str, Any]] = {
    "organise_a_run": {
        "directory": "my-run", "megabytes": 1, "layers": 1, "width": 32, "target_batch": 16, "steps": 3
    },
    "strategies_compared": {"directory": "tried", "minutes": 0.5, "homes": 2},
}  # fmt: skip
"""Notebooks that are no volunteer's, with values for their forms that make them short."""
RUN_FILE = """\
run_id: machines
microbatch_size: 8
task: {name: image_classification}
optimizer: {name: sgd, learning_rate: 0.1}
strategy: {name: dedloc, target_batch_size: 64}
checkpoints: {every_epochs: 1000, keep: 1}
"""
START_LIMIT_S = 120.0
LIMIT_S = 1800
"""Of the notebook, of which installing is most."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A hosted machine, by what matters here."""

    python: str
    notebook: str
    versions: dict[str, str]


MACHINES = {
    "colab": Machine(
        "python3.13",
        "join_colab",
        {**COMMON, "numpy": "2.1.3", "pandas": "2.2.3", "protobuf": "5.29.6", **FOR_5_15},
    ),
    "kaggle": Machine(
        "python3.12",
        "join_kaggle",
        {**COMMON, "numpy": "2.0.2", "pandas": "2.2.2", "protobuf": "5.29.5", **FOR_5_9},
    ),
}


class CheckFailed(Exception):
    """A step of the check could not be done, or what it found is not as it must be."""


def call(*words: str | Path) -> str:
    """Run a program to its end; its standard output.

    Raises:
        CheckFailed: it failed; what it said is in the message.
    """
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(f"{' '.join(map(str, words[:4]))} ... failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def wheel_of(folder: Path) -> Path:
    """Collab as people install it."""
    call(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl"))


class Emulated:
    """An environment with a machine's Python and versions."""

    def __init__(self, machine: Machine, folder: Path, python: str, *, has_torch_of_here: bool) -> None:
        """
        Args:
            python: interpreter to make it of.
            has_torch_of_here: the PyTorch of this environment, whose Python that must be, takes the place of theirs.
        """
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        self.versions_there = dict(machine.versions)
        if not self.python.exists():
            call(python, "-m", "venv", folder / "venv")
            self.pip("install", "--quiet", "--upgrade", "pip")
        if has_torch_of_here:
            torch = metadata.distribution("torch")
            self.versions_there |= {"torch": torch.version, **FOR_TORCH_OF_HERE}
            self._lend(torch)

    def _lend(self, package: metadata.Distribution) -> None:
        """Have a package of this environment there, too, by hard links where the disk is the same."""
        site = Path(call(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        for file in package.files or ():
            there = site / file
            if ".." in file.parts or there.exists():
                continue  # a command beside the interpreter
            there.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file.locate(), there)
            except OSError:
                shutil.copy2(file.locate(), there)

    def pip(self, *words: str | Path) -> str:
        """Pip there."""
        return call(self.python, "-m", "pip", *words)

    def install_theirs(self) -> None:
        """What the machine comes with."""
        self.pip("install", "--quiet", *(f"{name}=={version}" for name, version in self.versions_there.items()))

    def versions(self) -> dict[str, str]:
        """What is installed now."""
        return {row["name"].lower(): row["version"] for row in json.loads(self.pip("list", "--format", "json"))}

    def plan(self, *words: str | Path) -> dict[str, str]:
        """Versions that pip would install."""
        report = self.folder / "report.json"
        self.pip("install", "--quiet", "--dry-run", "--report", report, *words)
        rows = json.loads(report.read_text(encoding="utf-8"))["install"]
        return {row["metadata"]["name"].lower(): row["metadata"]["version"] for row in rows}

    def kernel(self) -> Path:
        """A folder in which nbclient finds this Python as a kernel."""
        spec = self.folder / "jupyter" / "kernels" / "emulated"
        spec.mkdir(parents=True, exist_ok=True)
        argv = [str(self.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (spec / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "emulated", "language": "python"}))
        return spec.parent


def filled_in(name: str, form: Mapping[str, Any]) -> Any:
    """A notebook with values for its form."""
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    place = next(place for place, cell in enumerate(book.cells) if "parameters" in cell.metadata.get("tags", []))
    text = "\n".join(f"{key} = {value!r}" for key, value in form.items())
    book.cells.insert(place + 1, nbformat.v4.new_code_cell(text))
    return book


def execute(emulated: Emulated, notebook: str, form: Mapping[str, Any]) -> tuple[Any, float]:
    """A notebook, run from its first cell to its last there; it as executed, and how many seconds that took."""
    book = filled_in(notebook, form)
    client = NotebookClient(book, timeout=LIMIT_S, resources={"metadata": {"path": str(emulated.folder)}})
    client.kernel_name = "emulated"
    client.create_kernel_manager().kernel_spec_manager = KernelSpecManager(kernel_dirs=[str(emulated.kernel())])
    began_s = time.monotonic()
    try:
        client.execute()
    finally:
        nbformat.write(book, emulated.folder / f"{notebook}.ipynb")
    return book, round(time.monotonic() - began_s, 1)


def join(emulated: Emulated, notebook: str, wheel: Path) -> tuple[str, float]:
    """As a volunteer there, a run whose backbone is of this checkout; what the last cell says, and seconds."""
    form = {"name": "volunteer", "package": str(wheel)}
    if notebook == "join_kaggle":
        form["keep"] = str(emulated.folder / "working")
    with tempfile.TemporaryDirectory(dir=emulated.folder) as place, closing(Household(Path(place))) as household:
        os.environ["PYTHONPATH"] = str(ROOT)
        invite, backbone = household.start_backbone(RUN_FILE, is_fresh=True)
        del os.environ["PYTHONPATH"]  # the kernel has what it has installed, and nothing of this checkout
        await_invite(invite, backbone, START_LIMIT_S)
        form["invite"] = invite.read_text(encoding="utf-8")
        os.environ["COLLAB_JOIN_EPOCHS"] = "2"  # a volunteer has more patience
        book, seconds = execute(emulated, notebook, form)
        del os.environ["COLLAB_JOIN_EPOCHS"]
    (joined,) = (cell.outputs for cell in book.cells if cell.id == "join")
    said = "\n".join(output.data["text/plain"] for output in joined if "data" in output)
    found = re.search(r"left at epoch .*", said)
    if found is None:
        raise CheckFailed(f"the notebook did not come to its end:\n{said}")
    return found[0], seconds


def check(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One machine."""
    machine = MACHINES[name]
    folder.mkdir(parents=True, exist_ok=True)
    wheel = wheel_of(folder)
    python = options.python or (sys.executable if options.torch_of_here else machine.python)
    emulated = Emulated(machine, folder, python, has_torch_of_here=options.torch_of_here)
    theirs = emulated.versions_there
    version = call(emulated.python, "--version").split()[1]
    facts: dict[str, Any] = {"machine": name, "emulated": {"python": version, "torch": theirs["torch"]}}
    if options.only_resolve:
        kept = folder / "constraints.txt"
        kept.write_text("".join(f"{package}=={version}\n" for package, version in theirs.items()))
        return facts | {"plan": emulated.plan("--constraint", kept, wheel)}
    emulated.install_theirs()
    before = emulated.versions()
    free = emulated.plan(wheel)
    facts["would_change"] = {
        package: f"{before[package]} -> {version}" for package, version in free.items() if package in before
    }
    facts["joined"], seconds = join(emulated, machine.notebook, wheel)
    facts["seconds"] = {machine.notebook: seconds}
    for notebook, form in ORGANISERS.items():
        _, facts["seconds"][notebook] = execute(emulated, notebook, form)
    after = emulated.versions()
    facts["changed"] = {package: after.get(package) for package, was in before.items() if after.get(package) != was}
    facts["came"] = {package: version for package, version in after.items() if package not in before}
    return facts


def main() -> None:
    """Print what was found; exit code 1 where something that was there has been replaced."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", choices=list(MACHINES), action="append")
    parser.add_argument("--folder", type=Path, help="kept, and used again; default: a temporary one")
    parser.add_argument("--python", default="", help="interpreter; default: the machine's, from PATH")
    parser.add_argument("--torch-of-here", action="store_true")
    parser.add_argument("--only-resolve", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    found = []
    with tempfile.TemporaryDirectory(prefix="collab-machines-") as scratch:
        for name in options.machine or list(MACHINES):
            found.append(check(name, options, (options.folder or Path(scratch)) / name))
            print(json.dumps(found[-1]), flush=True)
    sys.exit(any(facts.get("changed") for facts in found))


if __name__ == "__main__":
    main()
