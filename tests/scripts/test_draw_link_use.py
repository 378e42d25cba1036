"""The picture of link use: rounds and shares of uplinks, as a simulated swarm had them."""

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SWARM = """\
minutes: 1
microbatch_size: 8
task: {name: none, num_elements: 200000, samples: 2000}
optimizer: {name: sgd, learning_rate: 1.0e-6}
averaging: {compression: exact, reduction: mean}
strategies:
  - {label: equal shares, equal_shares: true, strategy: {name: dedloc, target_batch_size: 96}}
  - {label: shares by links, strategy: {name: dedloc, target_batch_size: 96}}
groups:
  - {name: backbone, role: backbone, up_mbit_per_s: 10, down_mbit_per_s: 10}
  - {name: fast, count: 2, samples_per_s: 16, up_mbit_per_s: 40, down_mbit_per_s: 40}
  - {name: slow, samples_per_s: 16, up_mbit_per_s: 4, down_mbit_per_s: 4}
"""


def test_rounds_by_links_are_shorter_and_the_picture_shows_all_uplinks(tmp_path: Path) -> None:
    (tmp_path / "swarm.yaml").write_text(SWARM)
    picture = tmp_path / "use.svg"
    command = [sys.executable, str(SCRIPTS / "draw_link_use.py"), str(tmp_path / "swarm.yaml"), str(picture)]
    done = subprocess.run([*command, "--from", "20", "--seconds", "12"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    equal, by_links = json.loads(done.stdout)["uses"]
    assert max(by_links["rounds_s"]) < min(equal["rounds_s"])
    assert 0.0 < equal["uplink_use"] < 1.0
    words = ["".join(text.itertext()) for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert words.count("40 Mbit/s") == 4, "two in each panel"
    assert words.count("4 Mbit/s") == 2
