"""A search that was stopped goes on as if it had not been; a file that is not its own is refused."""

from __future__ import annotations

import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

import jaxsens
from jaxsens.theory import SearchInterrupted
from jaxsens.theory.search import checkpoint as checkpoints
from tests.refusals import refusal, refused
from tests.theory.search.searching import model_of, searched

SEARCH: dict[str, Any] = {"exact": False, "restarts": 3}


def stopping(after: int) -> Any:
    def stop(step: Any) -> None:
        if step.done == after:
            raise KeyboardInterrupt

    return stop


@pytest.mark.quick(1, 1)
@pytest.mark.parametrize("objective", ["max", "mean"])
def test_interrupted_and_resumed_equals_uninterrupted(objective, tmp_path):
    model = model_of()
    whole = searched(model, 6, objective=objective, **SEARCH)
    whole.save(tmp_path / "whole")
    for after in range(1, whole.measurements, max(3, whole.measurements // 12)):  # all over the search
        path = tmp_path / f"state-{after}"
        with pytest.raises(SearchInterrupted) as caught:
            searched(model, 6, objective=objective, checkpoint=path, progress=stopping(after), **SEARCH)
        partial = caught.value.partial
        assert isinstance(caught.value, KeyboardInterrupt)
        assert partial.measurements == after
        assert not partial.converged or partial.restarts == whole.restarts[: len(partial.restarts)]
        assert partial.history == tuple(entry for entry in whole.history if entry[0] <= after)
        resumed = searched(model, 6, objective=objective, checkpoint=path, **SEARCH)
        resumed.save(tmp_path / "resumed")
        assert (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_search_that_is_killed_goes_on_from_any_state_that_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_EVERY", 0.0)
    model, path, copies = model_of(), tmp_path / "state", []

    def copy(step: Any) -> None:
        copies.append(tmp_path / f"copy-{step.done}")
        shutil.copy(path, copies[-1])

    whole = searched(model, 6, checkpoint=path, progress=copy, **SEARCH)
    assert len({copy.read_bytes() for copy in copies}) > 4
    for state in copies[::3]:
        assert searched(model, 6, checkpoint=state, **SEARCH).description() == whole.description()


def test_a_finished_search_is_not_run_again_and_goes_further_if_asked(tmp_path, monkeypatch):
    model, path = model_of(), tmp_path / "state"
    first = searched(model, 6, checkpoint=path, budget=4, **SEARCH)
    again = searched(model, 6, checkpoint=path, budget=4, **SEARCH)
    assert again.description() == first.description()
    whole = searched(model, 6, **SEARCH)
    assert searched(model, 6, checkpoint=path, **SEARCH).description() == whole.description()
    seen: list[Any] = []
    assert searched(model, 6, checkpoint=path, progress=seen.append, **SEARCH).value == whole.value
    assert seen == []
    more = {**SEARCH, "restarts": 5}
    assert (
        searched(model, 6, checkpoint=path, **more).description() == searched(model, 6, **more).description()
    )
    assert "more than asked for" in refused("checkpoint", searched, model, 6, checkpoint=path, **SEARCH)
    refused("checkpoint", searched, model, 6, checkpoint=path, budget=3, **more)


def test_a_checkpoint_of_other_arguments_is_refused(tmp_path):
    model, path = model_of(), tmp_path / "state"
    searched(model, 6, checkpoint=path, budget=3, **SEARCH)
    others: list[tuple[Any, dict[str, Any], str]] = [
        (model, {"seed": 1}, "seed"),
        (model, {"measure": "l1", "objective": "mean"}, "measure, objective"),
        (model, {"start": [0, 1, 2, 0, 1, 2]}, "start"),
        (model, {"fixed": {5: 3}}, "fixed"),
        (model_of(seed=1), {}, "parameters"),
        (model_of(mask="future"), {}, "model"),
        (model, {"flips": [0, 1]}, "flips"),
    ]
    for other, changes, named in others:
        assert f"other {named}; delete it" in refused(
            "checkpoint", searched, other, 6, checkpoint=path, **{**SEARCH, **changes}
        )


def test_a_function_that_holds_other_numbers_is_noticed(tmp_path):
    path = tmp_path / "state"

    def of(factor: float) -> Any:
        weights = np.random.default_rng(0).normal(size=6) * factor
        return lambda tokens: (tokens @ jax.numpy.asarray(weights)) ** 2

    searched(of(1.0), 6, 2, checkpoint=path, budget=3, **SEARCH)
    assert searched(of(1.0), 6, 2, checkpoint=path, budget=4, **SEARCH).measurements == 4
    assert "of another model" in refused("checkpoint", searched, of(1.5), 6, 2, checkpoint=path, **SEARCH)


def test_a_module_with_random_streams_and_a_checkpoint(tmp_path):
    # Their state is of random keys, which NumPy does not read.
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.embed = nnx.Embed(2, 3, rngs=nnx.Rngs(0))
            self.drop = nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(1))

        def __call__(self, tokens: Any) -> Any:
            return jax.numpy.tanh(self.drop(self.embed(tokens)).sum(axis=0))

    path = tmp_path / "state"
    first = searched(Model(), 6, 2, checkpoint=path, budget=3, **SEARCH)
    assert searched(Model(), 6, 2, checkpoint=path, budget=3, **SEARCH).description() == first.description()


def damages(text: str) -> dict[str, str]:
    table = json.loads(text)
    table["content"]["state"]["used"] += 1
    without = json.loads(text)
    del without["sha256"]
    return {
        "cut off": text[: len(text) // 2],
        "empty": "",
        "no object": "[1, 2]",
        "another number": json.dumps(table),
        "no checksum": json.dumps(without),
        "binary": "\x00\x01",
    }


def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(tmp_path):
    model, path = model_of(), tmp_path / "state"
    found = searched(model, 6, checkpoint=path, budget=3, **SEARCH)
    for damaged in damages(path.read_text()).values():
        path.write_text(damaged)
        with refusal("checkpoint"):
            searched(model, 6, checkpoint=path, budget=3, **SEARCH)
        assert path.read_text() == damaged
    found.save(path)
    assert "not a checkpoint" in refused(
        "checkpoint", searched, model, 6, checkpoint=path, budget=3, **SEARCH
    )


def test_ctrl_c_before_anything_was_found_is_a_plain_one(tmp_path, monkeypatch):
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxsens.core.placement.run.prepared_on", stop)
    path = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt) as caught:
        searched(model_of(), 6, checkpoint=path, **SEARCH)
    assert not isinstance(caught.value, SearchInterrupted)
    monkeypatch.undo()
    # What is left is a checkpoint of the beginning.
    assert searched(model_of(), 6, checkpoint=path, budget=2, **SEARCH).measurements == 2


def test_a_search_that_measures_nothing_leaves_no_checkpoint(tmp_path):
    model = model_of()
    broken = jax.tree.map(lambda leaf: np.full(leaf.shape, np.nan), model.parameters)
    refused(
        "model",
        searched,
        jaxsens.Transformer(model.config, parameters=broken),
        6,
        checkpoint=tmp_path / "state",
        **SEARCH,
    )
    assert not (tmp_path / "state").exists()
