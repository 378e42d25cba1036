"""The strategy that docs/strategies.md teaches, taken from there."""

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from collab.config import ForeignStrategy

TEXT = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
SOURCE = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)[0]
SHA = hashlib.sha256(SOURCE.encode()).hexdigest()
SECTION = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[0].replace("@SHA256@", SHA))["strategy"]


@contextmanager
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The file as a volunteer has it; gives the rest of the run file's section."""
    (folder / "sign_rule.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    content = ForeignStrategy.model_validate(SECTION).model_dump(exclude={"name", "target_batch_size"})
    yield "module, " + ", ".join(f"{name}: {value!r}" for name, value in content.items())
    sys.modules.pop("sign_rule", None)
