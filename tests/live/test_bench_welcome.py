"""The benchmark of a volunteer's first minute: on a terminal, in the order in which a person sees it."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def test_a_newcomer_reads_is_asked_sees_the_panel_and_contributes() -> None:
    command = [sys.executable, str(SCRIPTS / "bench_welcome.py"), "--joins", "1", "--json"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (join,) = json.loads(result.stdout.splitlines()[-1])["joins"]
    moments = [join[name] for name in ("first_words_s", "terms_s", "panel_s", "contribution_s")]
    assert moments == sorted(moments)
    assert 2.0 * join["first_words_cpu_s"] < join["cpu_s"], "something is there to read before anything heavy is loaded"
