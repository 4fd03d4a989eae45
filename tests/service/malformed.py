"""Bodies that ask for nothing: parts of a sound one replaced, removed or added, and bytes that are no JSON."""

from __future__ import annotations

import json
import random
from typing import Any

SOUND: dict[str, Any] = {
    "model": "tiny",
    "tokens": [0, 1, 2, 1],
    "flips": {"kind": "substitute", "symbols": 3},
    "measure": {"kind": "l2"},
    "engine": {"kind": "vmap"},
    "placement": {"batch_size": 4},
    "readout": "last",
    "output": None,
}

ANYTHING: tuple[Any, ...] = (
    None, True, -1, 3.5, 10**30, 1e308, "", "x", "../../etc/passwd", "<script>alert(1)</script>", "\u202e", "a" * 5000,
    [], [[]], [None], {}, {"A": None}, {"kind": None}, {"kind": "l2", "f": "os.system"}, {"kind": "function", "f": "x"},
    {"kind": "substitute", "symbols": -3}, {"kind": "neighbours", "k": "many"}, {"": 0}, [0, 1, "two"], [0, 1.5], [-1],
    [[0, 1], "a"], {"batch_size": 0}, {"memory_budget": "all"}, {"kind": "vmap", "verify": 3}, [10**30], "\x00",
)  # fmt: skip


NO_JSON = (b"[" * 5000, b"1" * 5000, b"", b"NaN", b'{"model": "\\ud800"}')


def malformed(draw: random.Random) -> tuple[bytes, str]:
    """Returns a body, and the name of the field that is wrong."""
    kind = draw.randrange(10)
    if kind == 0:
        raw = json.dumps(SOUND).encode()
        cut = raw[: draw.randrange(len(raw) - 1)]
        return draw.choice((cut, raw + b"]", b"\xff\xfe" + raw, *NO_JSON)), "body"
    if kind == 1:
        return json.dumps(draw.choice((None, 3, "text", [SOUND], []))).encode(), "body"
    body, field = json.loads(json.dumps(SOUND)), draw.choice([*SOUND])
    if kind == 2:
        name = draw.choice(("modle", "flip", "token", "resume", "__class__", "progress"))
        return json.dumps({**body, name: draw.choice(ANYTHING)}).encode(), name
    if kind == 3 and isinstance(body[field], dict):
        body[field][draw.choice(("kindd", "outputs", "k", "sample", "seed", "batch_size"))] = draw.choice(
            ANYTHING
        )
    elif kind == 4 and field in ("model", "tokens"):
        del body[field]
    else:
        body[field] = draw.choice(ANYTHING)
    return json.dumps(body).encode(), field
