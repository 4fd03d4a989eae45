"""What remains of an interrupted call completes its result, if everything else is as it was."""

from __future__ import annotations

import dataclasses
import math
from functools import partial as bound
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsens import (
    InputError,
    MeasurementInterrupted,
    Placement,
    Substitute,
    Transformer,
    explain,
    flip_sensitivity,
    load_result,
)
from jaxsens.core.base.programs import numerics
from jaxsens.core.measures import L2
from jaxsens.core.models.adapters import as_model
from jaxsens.core.placement import run
from jaxsens.core.results.measured import Provenance, fingerprint, weights_of
from tests.refusals import refusal, refused
from tests.small_models import small as config_of

TOKENS = np.random.default_rng(0).integers(0, 3, (2, 24))
MODELS = "model, parameters and function as SHA-256,"
"""What is named where the model is another one."""


def small(seed=0, dtype="float32", **changes):
    return Transformer(config_of(layers=1, dtype=dtype, **changes), seed=seed)


MODEL = small()
OPTIONS = {"placement": Placement(batch_size=2), "engine": "vmap"}


def interrupted(chunks, model: Any = MODEL, tokens=TOKENS, least=0, **options):
    """What is left of a call that is interrupted after so many chunks with more than `least` flips finished."""
    calls = []

    def progress(done, total):
        if done > least:
            calls.append((done, total))
        if len(calls) == chunks:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "_SHORT", 0.0)
        patched.setattr(run, "_CHUNK_SECONDS", 1e-9)
        with pytest.raises(MeasurementInterrupted) as caught:
            flip_sensitivity(model, tokens, progress=progress, **options)
    return caught.value.partial


def completed(part, model: Any = MODEL, tokens=TOKENS, **options):
    """The partial result with the flips that remain; the options are those of the call but its flips."""
    return part.joined(flip_sensitivity(model, tokens, part.remaining, **options))


@pytest.fixture(scope="module")
def whole():
    return flip_sensitivity(MODEL, TOKENS, **OPTIONS)


@pytest.fixture(scope="module")
def partial():
    return interrupted(2, **OPTIONS)


def arrays(result):
    return [getattr(result, name) for name in ("values", "inputs", "positions", "symbols", "tokens")]


def same(one, other):
    assert one.description() == other.description()
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::jaxsens.PrecisionWarning")  # float64 does not resolve most of them
def test_flips_left_to_a_fallback_are_counted_once_however_often_a_call_is_interrupted():
    cold = small(weighting="temperature-cubic")
    options = {"placement": Placement(batch_size=2), "engine": "vmap"}
    whole = flip_sensitivity(cold, TOKENS, **options)
    counted = [count for how, count in whole.engine.elsewhere if "float64" in how]
    assert sum(counted) > len(whole) / 2
    part = interrupted(1, cold, least=len(whole) // 2, **options)
    assert 0 < len(part) < len(whole)
    assert 0 < sum(count for how, count in part.engine.elsewhere if "float64" in how) <= len(part)
    same(completed(part, cold, **options), whole)


@pytest.mark.long
def test_an_input_of_a_sample_over_several_is_not_completed_alone():
    """The sample would be drawn again, from that input alone."""
    flips = Substitute(sample=20, seed=1)
    part = interrupted(1, flips=flips, placement=Placement(batch_size=2), engine="vmap")
    one = part.of_input(0)
    with refusal("remaining: flips of each input"):
        flip_sensitivity(MODEL, TOKENS[:1], one.remaining, placement=Placement(batch_size=2), engine="vmap")


def test_only_what_remains_is_measured_and_counted_and_is_a_partial_result_itself(whole, partial):
    seen = []
    rest = flip_sensitivity(
        MODEL, TOKENS, partial.remaining, **OPTIONS, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (len(rest), len(rest)) == (len(whole) - len(partial),) * 2
    assert (rest.complete, rest.requested, rest.mean_interval()) == (False, len(whole), (0, math.inf))
    assert repr(partial.remaining) == f"Remaining({len(rest)} of {len(whole)} flips)"
    same(rest.joined(partial), whole)
    poisoned = dataclasses.replace(partial, values=np.full_like(partial.values, 7.0))
    assert int((completed(poisoned, **OPTIONS).norms == 7.0).sum()) == len(partial)


def test_a_partial_result_is_completed_in_several_goes_through_a_file(whole, partial, tmp_path):
    partial.save(tmp_path / "partial.parquet")
    loaded = load_result(tmp_path / "partial.parquet")
    same(loaded, partial)
    assert not loaded.complete
    second = interrupted(1, **OPTIONS, flips=loaded.remaining)
    second.save(tmp_path / "second.parquet")
    further = loaded.joined(load_result(tmp_path / "second.parquet"))
    assert len(partial) < len(further) < len(whole)
    further.save(tmp_path / "partial.parquet")
    done = completed(load_result(tmp_path / "partial.parquet"), **OPTIONS)
    same(done, whole)
    same(completed(done, **OPTIONS), whole)


def test_a_partial_result_is_never_taken_for_a_whole_one(whole):
    """A signal may come after the last chunk, before what the checks at the end would find."""
    calls = []

    def progress(done, total):
        calls.append(done)
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(MeasurementInterrupted) as caught:
        flip_sensitivity(MODEL, TOKENS, progress=progress, **OPTIONS)
    partial = caught.value.partial
    assert calls[-1] == len(whole)
    assert (len(partial), partial.complete, partial.requested) == (len(whole) - 1, False, len(whole))
    done = completed(partial, **OPTIONS)
    # The last flip is in a batch of its own, whose products are rounded in another order.
    np.testing.assert_allclose(done.norms, whole.norms, rtol=1e-5)


def test_a_partial_result_of_no_flips_has_a_repr_and_statistics_and_can_be_completed(
    whole, tmp_path, monkeypatch
):
    def at_once(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("jaxsens.core.placement.run.inputs_at_once", at_once)
        with pytest.raises(MeasurementInterrupted) as caught:
            flip_sensitivity(MODEL, TOKENS, **OPTIONS)
    none = caught.value.partial
    assert "0 of 92 flips, interrupted" in repr(none)
    assert len(none) == 0
    assert all(math.isnan(value) for value in (none.max, none.mean, none.quantile(0.5)))
    assert none.mean_interval() == (0, math.inf)
    assert np.isnan(none.profile()).all()
    assert none.profile().shape == (2, 24, 3)
    assert len(none.to_pandas()) == 0
    with pytest.raises(InputError):
        _ = none.argmax
    none.save(tmp_path / "none.parquet")
    same(completed(load_result(tmp_path / "none.parquet"), **OPTIONS), whole)


CHANGES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "tokens": ({"tokens": (TOKENS + 1) % 3}, ("tokens",)),
    "fewer tokens": ({"tokens": TOKENS[:1]}, ("tokens", "flips of each input")),
    "measure": ({"measure": "l1"}, ("measure",)),
    "engine": ({"engine": "auto"}, ("engine",)),
    "outputs": ({"measure": L2(outputs=[0])}, ("measure", "outputs")),
    "model": ({"model": small(seed=1)}, (MODELS,)),
    "function": ({"model": small(weighting="leftmost-hard")}, (MODELS,)),
    "dtype": ({"model": small(dtype="float64")}, ("dtype", MODELS)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CHANGES)
def test_a_call_that_differs_is_refused_and_told_in_what(partial, name):
    changes, names = CHANGES[name]
    given: dict[str, Any] = {"model": MODEL, "tokens": TOKENS, **OPTIONS, **changes}
    with refusal(*(f"remaining{'.' if one.isidentifier() else ': '}{one}" for one in names)):
        flip_sensitivity(**given, flips=partial.remaining)
    with refusal(*names):
        partial.joined(flip_sensitivity(**given))


@pytest.mark.parametrize(
    ("flips", "names"),
    [
        ([0, 1], ("flips", "flips, what they insert", "flips of each input")),
        ([0, 1, 2], ("flips",)),
        (Substitute(positions=range(23)), ("flips",)),
        (Substitute(sample=20, seed=2), ("flips", "flips of each input")),
        (None, ("rest",)),  # it has flips that this result has
    ],
)
def test_results_of_other_flips_are_not_joined(partial, flips, names):
    with refusal(*names):
        partial.joined(flip_sensitivity(MODEL, TOKENS, flips, **OPTIONS))


def test_other_versions_and_what_is_no_partial_result_of_the_call_are_refused(partial):
    older = dataclasses.replace(
        partial, run=Provenance(partial.dtype, {**partial.run.versions, "jax": "0.4.0"})
    )
    with refusal("remaining: versions['jax']"):
        flip_sensitivity(MODEL, TOKENS, older.remaining, **OPTIONS)
    refused("rest", partial.joined, "partial.parquet")
    refused("flips.symbols", explain, MODEL, 24, partial.remaining)
    turned = dataclasses.replace(partial.flips, positions=partial.positions[::-1])
    refused("remaining", completed, dataclasses.replace(partial, flips=turned), **OPTIONS)


def closing_over(array, factor=1.0):
    return lambda tokens: factor * array[tokens].sum(0)


@pytest.mark.long
def test_a_function_of_ones_own_is_completed_though_it_is_made_anew(tmp_path):
    table = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    options: dict[str, Any] = {"flips": 3, "placement": Placement(batch_size=2)}

    def model():
        return closing_over(jnp.asarray(table))

    part = interrupted(1, model(), **options)
    part.save(tmp_path / "part.parquet")
    whole = flip_sensitivity(model(), TOKENS, **options)
    del options["flips"]
    same(completed(load_result(tmp_path / "part.parquet"), model(), **options), whole)
    table[0, 0] += 1
    with refusal(f"remaining: {MODELS}"):
        completed(part, model(), **options)


def test_the_hash_of_a_function_is_of_what_it_computes():
    table = jax.random.normal(jax.random.key(0), (3, 50))

    def of(model, n=8):
        with numerics("float32"):
            return fingerprint(as_model(model), n)

    assert of(closing_over(table)) == of(closing_over(table + 0))
    others = {
        of(closing_over(table)),
        of(closing_over(table.at[2, 40].add(1e-6))),
        of(closing_over(table, 2.0)),
        of(jax.jit(closing_over(table.at[1, 1].add(1.0)))),
        of(jax.tree_util.Partial(bound(jnp.take, axis=0), table)),
        of(jax.tree_util.Partial(bound(jnp.take, axis=0), table + 1)),
    }
    assert len(others) == 6


def test_the_hash_of_weights_is_of_their_names_shapes_and_types_too():
    def of(parameters):
        return weights_of(as_model((lambda weights, tokens: jnp.zeros(2), parameters)))

    zeros = np.zeros((2, 3), np.float32)
    different = [
        [zeros],
        [zeros.reshape(3, 2)],
        [zeros.view(np.int32)],
        [zeros, zeros],
        [np.zeros((4, 3), np.float32)],
        [zeros + 1],
        [jax.random.key(0)],
        [jax.random.key(1)],
    ]
    assert len({of(parameters) for parameters in different}) == len(different)
    one = as_model((lambda weights, tokens: jnp.zeros(2), [zeros]))
    named = [dataclasses.replace(one, parameters=tree) for tree in ({"a": zeros}, {"b": zeros}, [[zeros]])]
    assert len({weights_of(subject) for subject in (one, *named)}) == 4
    model = small()
    swapped = dataclasses.replace(
        model.parameters.layers[0], query=model.parameters.layers[0].key, key=model.parameters.layers[0].query
    )
    other = dataclasses.replace(model.parameters, layers=(swapped,))
    assert weights_of(as_model(Transformer(model.config, parameters=other))) != weights_of(as_model(model))
