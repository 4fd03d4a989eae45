"""The example of docs/lemma5.md gives what is shown."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "lemma5.md").read_text(encoding="utf-8")


def test_the_example_runs_and_gives_what_is_shown():
    names: dict[str, object] = {}
    shown = 0
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        for line in block.splitlines():
            code, _, remark = line.partition("  # ")
            if remark:
                assert str(eval(code, names)) == remark.split(":")[0], line
                shown += 1
            else:
                exec(code, names)
    assert shown == 2
