"""What the faults of `tools/faults.toml` do. Each function stands in for one of the package: its first argument is the
original, and the others are those of the call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def last_position_not_flipped(original: Any, candidates: Any, *given: Any) -> Any:
    """core/flips."""
    table = original(candidates, *given)
    first = table.positions[:, 0]
    keep = first < first.max()
    if len(candidates.positions) % 2 == 0 or not keep.any() or len(table) < table.population:
        return table
    part = table.part(keep)
    return replace(part, populations=np.bincount(part.inputs, minlength=len(table.populations)))


def kl_other_way_round(original: Any, measure: Any, y: Any, dy: Any, *bounds: Any) -> Any:
    """core/measures."""
    return original(measure, y + dy, -dy, *bounds)


def vmap_change_off(original: Any, engine: Any, parameters: Any, prepared: Any, block: Any) -> Any:
    """core/engines."""
    new = original(engine, parameters, prepared, block)
    return new + (1e-3 * (new - prepared.output)).astype(new.dtype)


def incremental_weights_off(original: Any, *given: Any) -> Any:
    """core/engines."""
    return original(*given) * (1 + 1e-3)


def folded_change_off(original: Any, *given: Any) -> Any:
    """core/engines."""
    change, error = original(*given)
    return change * (1 + 1e-4), error


def difference_rows_off(original: Any, *given: Any) -> Any:
    """core/engines."""
    moved = original(*given)
    return replace(moved, db=moved.db * (1 + 1e-4))


def gradients_off(original: Any, *given: Any) -> Any:
    """first_order."""
    return original(*given) * 1.01


def temperature_of_next_query(original: Any, weighting: Any, rows: Any, n: int, dtype: Any) -> Any:
    """core/models."""
    return original(weighting, (rows + 1).clip(max=n - 1), n, dtype)


def window_too_wide(original: Any, mask: Any, queries: Any, keys: Any) -> Any:
    """core/models."""
    return original(replace(mask, width=mask.width + 1), queries, keys)


def _rounded(x: Any) -> Any:
    import jax.numpy as jnp

    return x.astype(jnp.bfloat16).astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x


def flax_weights_rounded(original: Any, apply: Any, parameters: Any, tokens: Any) -> Any:
    """core/models."""
    import jax

    return original(apply, jax.tree.map(_rounded, parameters), tokens)


def callable_weights_rounded(original: Any, apply: Any, parameters: Any, tokens: Any) -> Any:
    """core/models."""
    return original(apply, [_rounded(one) for one in parameters], tokens)


def torch_weights_not_compared(original: Any, model: Any) -> str:
    """core/models."""
    del original
    return repr(model.module)


def last_of_block_repeated(original: Any, *given: Any) -> Iterator[Any]:
    """core/placement."""
    for done, values in original(*given):
        if len(values) > 1:
            values = np.array(values)
            values[-1] = values[-2]
        yield done, values


def quantile_too_low(original: Any, result: Any, q: float) -> float:
    """core/results."""
    return original(result, 0.99 * q if isinstance(q, float) and 0 < q < 1 else q)


def mean_interval_halved(original: Any, measured: Any, confidence: float, largest: float) -> Any:
    """core/results."""
    low, high = original(measured, confidence, largest)
    centre = float(np.mean(measured.drawn))
    return (low + centre) / 2, (high + centre) / 2


def resolved_too_early(original: Any, values: Any, resolution: Any) -> Any:
    """core/results."""
    return original(values, np.asarray(resolution) / 10)


def numbers_not_sealed(original: Any, stored: Any, arrays: Any = ()) -> str:
    """core/results."""
    del arrays
    return original(stored)


def weights_not_in_key(original: Any, point: Any) -> Any:
    """core/sweeps."""
    return original(point) | {"model": {}}


def other_point_taken_for_done(original: Any, *given: Any) -> None:
    """core/sweeps."""
    del original, given


def shard_without_last_point(original: Any, points: Any, only: Any = (), shard: str | None = None) -> Any:
    """core/sweeps."""
    chosen = original(points, only, shard)
    return chosen if shard is None else chosen[:-1]


def misspelt_key_ignored(original: Any, error: Any, *given: Any) -> list[Any]:
    """core/sweeps."""
    others = [one for one in error.errors(include_url=False) if one["type"] != "extra_forbidden"]
    return original(SimpleNamespace(errors=lambda **_: others), *given)


def exponent_interval_halved(original: Any, values: Any) -> Any:
    """core/report."""
    low, high = original(values)
    return low + (high - low) / 4, high - (high - low) / 4


def finding_left_out(original: Any, names: Any) -> Any:
    """core/report."""
    return original([*names][:1])


def first_mistake_only(original: Any, problems: Any, *given: Any) -> None:
    """core/base."""
    del problems[1:]
    original(problems, *given)


def written_in_place(original: Any, path: Any, clear: bool = True) -> Iterator[Path]:
    """core/base."""
    with contextlib.contextmanager(original)(path, clear) as temporary:
        yield Path(path)
        temporary.write_bytes(Path(path).read_bytes())


def signal_not_heard(original: Any) -> None:
    """core/base."""
    del original


def bad_input_exit_0(original: Any, arguments: Any) -> int:
    """cli."""
    code = original(arguments)
    return 0 if code == 2 else code


def lemma5_without_scores(original: Any, layer: Any, *given: Any) -> Any:
    """theory."""
    nothing = np.full_like(layer.log_query, -np.inf)
    return original(replace(layer, log_query=nothing, log_key=nothing), *given)


def certified_too_small(original: Any, *given: Any) -> Any:
    """theory."""
    found = original(*given)
    return found - 0.01 * np.abs(found)


def cases_need_not_cover(original: Any, *given: Any) -> bool:
    """theory."""
    del original, given
    return True


def since_swapped(original: Any, builder: Any, left: Any, right: Any, mask: Any) -> Any:
    """formal."""
    return original(builder, right, left, mask)


def count_right_strict(original: Any, term: Any, truth: Any) -> Any:
    """formal."""
    found = original(term, truth)
    return found - truth if type(term).__name__ == "CountRight" else found


def words_of_other_length(original: Any, automaton: Any, n: int) -> int:
    """formal."""
    return original(automaton, n - 1 if n else n)


def unused_symbols_inserted(original: Any, *given: Any) -> tuple[int, ...]:
    """pretrained."""
    del original, given
    return ()


def published_positions_shifted(
    original: Any, model: Any, parameters: Any, symbol: Any, position: Any
) -> Any:
    """pretrained."""
    return original(model, parameters, symbol, position + 1)


def untied_head_ignored(original: Any, *given: Any) -> None:
    """pretrained."""
    del original, given


def other_training_continued(original: Any, *given: Any) -> None:
    """training."""
    del original, given


def influence_transposed(original: Any, matrix: Any, *given: Any) -> Any:
    """analysis."""
    return original(matrix, *given).T


def token_prefix_accepted(original: Any, guard: Any, request: Any) -> bool | None:
    """service."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    return guard._token.startswith(token) if token else original(guard, request)


def store_follows_links(original: Any, path: Path) -> Path:
    """service."""
    del original
    return path
