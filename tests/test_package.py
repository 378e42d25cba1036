"""What people install: the wheel in a bare environment, and the set-up script's refusals."""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SETUP_INPUTS = ("setup.cfg", "pyproject.toml", "constraints.txt", "scripts/setup.sh")


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without this checkout on its path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def children_cpu_s() -> float:
    """Processor time of all finished children: on an idle machine the time one waits, and the same on a busy one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy so that nothing is left in the checkout."""
    source = tmp_path_factory.mktemp("source") / "collab"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "dist", "runs", "*.egg-info"))
    out = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=out)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel; its dependencies are those of the running environment."""
    environment = tmp_path_factory.mktemp("bare") / "venv"
    made = run(sys.executable, "-m", "venv", environment, cwd=environment.parent)
    assert made.returncode == 0, made.stderr
    python = environment / "bin" / "python"
    installed = run(
        python, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check", wheel,
        cwd=environment.parent,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stdout + installed.stderr
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=environment.parent)
    # A .pth only appends plain directories: the editable finder of the checkout, itself a .pth, is not followed.
    Path(site.stdout.strip(), "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment


def test_the_wheel_holds_all_of_both_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in ("collab", "peers")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    page = {f"peers/dashboard/page/{name}" for name in ("index.html", "dashboard.js", "dashboard.css", "icon.svg")}
    assert {"collab/py.typed", "peers/py.typed", *page} <= expected
    assert sorted(expected - set(names)) == []
    assert {name.partition("/")[0] for name in names} == {"collab", "peers", "collab-0.1.0.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_an_installed_wheel_imports_from_its_own_environment(bare: Path, tmp_path: Path) -> None:
    code = "import collab, peers, collab.config, peers.cli; print(collab.__file__, peers.__file__, sep='\\n')"
    done = run(bare / "bin" / "python", "-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith(str(bare)) for line in done.stdout.split())


def test_the_installed_command_explains_itself_in_under_half_a_second(bare: Path, tmp_path: Path) -> None:
    run(bare / "bin" / "collab-peer", "--help", cwd=tmp_path)  # writes the bytecode, which an installer does, too
    durations_s = []
    for _ in range(3):
        before_s = children_cpu_s()
        done = run(bare / "bin" / "collab-peer", "--help", cwd=tmp_path)
        durations_s.append(children_cpu_s() - before_s)
        assert done.returncode == 0, done.stderr
        for command in ("init", "backbone", "join", "status", "demo"):
            assert command in done.stdout
    assert statistics.median(durations_s) < 0.5


def test_the_installed_command_writes_a_run_file(bare: Path, tmp_path: Path) -> None:
    done = run(bare / "bin" / "collab-peer", "init", tmp_path / "my-run", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'run_id: "my-run"' in (tmp_path / "my-run" / "run.yaml").read_text()


def test_the_constraints_pin_every_direct_dependency_without_a_local_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "torch==2.13.0"
    assert all("==" in line and "+" not in line for line in lines)
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    settings = (ROOT / "setup.cfg").read_text()
    required = settings.partition("install_requires =")[2].partition("[options.packages.find]")[0]
    names = [line.strip().partition(">")[0].lower().replace("_", "-") for line in required.splitlines() if ">" in line]
    assert "hivemind" in names
    assert [name for name in names if name not in pinned] == []


# -- scripts/setup.sh ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with only what the set-up script reads, on a path with a space."""
    root = tmp_path / "a checkout"
    for name in SETUP_INPUTS:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def program(folder: Path, name: str, script: str) -> None:
    """Put an executable shell script into ``folder``."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_set_up_on_another_system_says_what_is_needed_and_makes_nothing(checkout: Path, tmp_path: Path) -> None:
    program(tmp_path / "bin", "uname", '[ "$1" = -s ] && echo Darwin || echo arm64')
    done = run("bash", checkout / "scripts" / "setup.sh", cwd=tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "Linux on x86-64" in done.stderr
    assert "Darwin arm64" in done.stderr
    assert "WSL2" in done.stderr
    assert not (checkout / ".venv").exists()


def test_set_up_without_a_usable_python_says_which_one_to_install(checkout: Path, tmp_path: Path) -> None:
    for name in ("python3.11", "python3.12", "python3.13", "python3", "python"):
        program(tmp_path / "bin", name, "exit 1")
    done = run("bash", checkout / "scripts" / "setup.sh", cwd=tmp_path, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_failed_set_up_leaves_no_stamp_and_a_finished_one_is_not_repeated(checkout: Path, tmp_path: Path) -> None:
    script, stamp = checkout / "scripts" / "setup.sh", checkout / ".venv" / "collab-setup.stamp"
    no_packages = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    failed = run("bash", script, cwd=tmp_path, **no_packages)
    assert failed.returncode == 1
    assert "pip could not install" in failed.stderr
    assert not stamp.exists()

    log = tmp_path / "pip.log"
    python = checkout / ".venv" / "bin" / "python"
    real = python.resolve()
    python.unlink()
    program(python.parent, "python", f'[ "$1 $2" = "-m pip" ] && echo "$*" >>"{log}" && exit 0\nexec "{real}" "$@"')
    finished = run("bash", script, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "torch==2.13.0" in log.read_text()
    assert f"--editable {checkout}[dev]" in log.read_text()
    log.unlink()

    before_s = children_cpu_s()
    again = run("bash", script, cwd=tmp_path)
    assert children_cpu_s() - before_s < 1
    assert (again.returncode, again.stderr, log.exists()) == (0, "", False)

    (checkout / "constraints.txt").write_text("torch==2.13.0\n")
    changed = run("bash", script, cwd=tmp_path)
    assert changed.returncode == 0
    assert log.exists()
