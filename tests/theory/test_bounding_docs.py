"""The examples of docs/bounding.md give what is shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "bounding.md").read_text(encoding="utf-8")


def test_the_examples_run_and_give_what_is_shown():
    names: dict[str, object] = {}
    shown = 0
    for block in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        lines = block.splitlines()
        for statement in ast.parse(block).body:
            code = ast.unparse(statement)
            _, _, remark = lines[(statement.end_lineno or 0) - 1].partition("  # ")
            if remark:
                assert str(eval(code, names)) == remark.split(":")[0], code
                shown += 1
            else:
                exec(code, names)
    assert shown == 5
