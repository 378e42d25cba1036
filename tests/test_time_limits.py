"""The runner itself: no test passes that ran into its time limit."""

import shutil
import subprocess
import sys
from pathlib import Path

TESTS = """\
import contextlib
import time
import pytest


@pytest.mark.timeout(0.2)
def test_that_swallows_its_interruption() -> None:
    with contextlib.suppress(BaseException):
        time.sleep(60)


@pytest.mark.timeout(20)
def test_in_time() -> None:
    pass
"""


def test_a_test_that_swallows_the_interruption_at_its_limit_fails(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parent / "conftest.py", tmp_path)
    (tmp_path / "test_slow.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    command += ["-o", "timeout=20", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 1, ended.stdout
    assert "something swallowed the interruption" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
