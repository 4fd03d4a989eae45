"""Results put together, inputs of several lengths and texts: the same numbers as one by one, and sound statistics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens.asked.engines import FirstOrder
from jaxsens.asked.flips import Substitute
from jaxsens.asked.measures import L2, Function
from jaxsens.models.transformer.layered import LayeredModel
from jaxsens.models.transformer.layers import layered_transformer
from jaxsens.sensitivity.results.result import FlipSensitivity

CONFIG = jaxsens.TransformerConfig(alphabet_size=3, width=4, heads=1, layers=1, feed_forward=4)
MODEL = jaxsens.Transformer(CONFIG, seed=0)
ROWS = [[0, 1, 2, 0, 1], [2, 2], [1, 0, 2, 2, 1], [0, 1, 1]]
COLUMNS = ("values", "inputs", "positions", "symbols", "tokens")


class Speller(LayeredModel):
    """Encodes letters a, b, c."""

    def encode(self, text: str) -> list[int]:
        return ["abc".index(letter) for letter in text]

    def tokens(self, ids: Any) -> list[str]:
        return ["abc!"[one] for one in ids]


SPELLER = Speller(layered_transformer(CONFIG), MODEL.parameters)


def measured(tokens: Any, model: Any = MODEL, **options: Any) -> FlipSensitivity:
    return jaxsens.flip_sensitivity(model, tokens, engine=options.pop("engine", "vmap"), **options)


def same(one: FlipSensitivity, other: FlipSensitivity) -> None:
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.description() == other.description()


@pytest.fixture(scope="module")
def singles() -> list[FlipSensitivity]:
    return [measured(row) for row in ROWS]


@pytest.fixture(scope="module")
def whole(singles) -> FlipSensitivity:
    return jaxsens.concat(singles)


def test_each_input_is_again_what_it_was(singles, whole):
    for k, one in enumerate(singles):
        same(whole.of_input(k), one)
    assert whole.population == sum(one.population for one in singles)
    assert whole.exhaustive
    assert whole.complete


def test_shorter_inputs_are_padded(whole):
    assert whole.tokens.tolist()[1] == [2, 2, -1, -1, -1]
    assert whole.lengths == (5, 2, 5, 3)
    assert whole.n == 5
    assert "n=2 to 5, inputs=4" in repr(whole)
    assert np.isnan(whole.profile()[1, 1:]).all()
    assert [len(one.tokens) for one in whole.view().inputs] == [5, 2, 5, 3]
    assert whole._repr_html_().count('<p class="text') == 4
    assert (whole.to_pandas()["position"] < np.array(whole.lengths)[whole.inputs]).all()


def test_statistics_are_those_of_all_flips(singles, whole):
    norms = np.concatenate([one.norms for one in singles]).astype(np.float64)
    assert whole.mean == pytest.approx(norms.mean())
    assert whole.max == norms.max()
    assert whole.quantile(0.9) == pytest.approx(np.quantile(norms, 0.9))
    assert whole.mean_interval() == (whole.mean, whole.mean)


def test_inputs_of_one_length_are_as_measured_together(singles):
    together = measured([ROWS[0], ROWS[2]])
    apart = jaxsens.concat([singles[0], singles[2]])
    np.testing.assert_allclose(apart.norms, together.norms, rtol=1e-5)
    for name in COLUMNS[1:]:
        np.testing.assert_array_equal(getattr(apart, name), getattr(together, name))
    assert apart.lengths is None


def test_results_of_concat_can_be_put_together_and_saved(singles, whole, tmp_path):
    nested = jaxsens.concat([jaxsens.concat(singles[:2]), jaxsens.concat(singles[2:])])
    same(nested, whole)
    nested.save(tmp_path / "r.parquet")
    loaded = jaxsens.load_result(tmp_path / "r.parquet")
    same(loaded, whole)
    same(loaded.of_input(3), singles[3])
    assert jaxsens.concat(singles[:1]) is singles[0]


def test_several_lengths_in_one_call_are_measured_one_after_another(whole):
    told: list[tuple[int, int]] = []
    result = measured(ROWS, progress=lambda done, total: told.append((done, total)))
    same(result, whole)
    assert told[-1] == (whole.population, whole.population)
    assert {total for _, total in told} == {whole.population}
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_inputs_of_one_length_are_still_measured_together():
    assert measured([[0, 1], [2, 2]]).parts is None
    assert measured(np.array([[0, 1], [2, 2]])).parts is None


@pytest.mark.long
def test_texts_are_encoded_by_models_that_can():
    one = measured("abca", SPELLER, flips=3)
    assert one.tokens.tolist() == [[0, 1, 2, 0]]
    several = measured(["ab", "cab"], SPELLER, flips=3)
    assert several.lengths == (2, 3)
    assert several.names == {0: "a", 1: "b", 2: "c"}
    assert list(several.to_pandas()["token"][:2]) == ["a", "a"]
    assert measured(["ab", "ca"], SPELLER, flips=3).tokens.tolist() == [[0, 1], [2, 0]]
    with pytest.raises(jaxsens.InputError, match="ids, not text"):
        measured("abc")
    with pytest.raises(jaxsens.InputError, match="ids, not text"):
        measured(["ab", "c"])


def test_an_input_that_cannot_be_measured_is_named_before_anything_is():
    with pytest.raises(jaxsens.InputError) as caught:
        measured([[0, 1], [0, 9, 1], [0, 1, 0, 1, 7]])
    assert "input 1: tokens = 9: the model reads ids" in str(caught.value)
    assert "input 2: tokens = 7" in str(caught.value)
    with pytest.raises(jaxsens.InputError, match="input 0: flips: positions = 3: positions from 0 to 1"):
        measured([[0, 1], [0, 1, 2, 1]], flips=Substitute(positions=[3]))
    with pytest.raises(jaxsens.InputError, match=r"input 1: tokens of shape \(1, 1\): nothing to flip"):
        measured([[0, 1], [0]])
    with pytest.raises(jaxsens.InputError, match="progress = 3: a function"):
        measured([[0, 1], [0]], progress=3)
    with pytest.raises(jaxsens.InputError, match="measure = 'l3'"):
        measured(ROWS, measure="l3")
    with pytest.raises(jaxsens.InputError, match="whole numbers of shape"):
        measured([[0, 1], [[0], [1, 2]]])


def test_an_interrupted_call_keeps_what_was_measured_and_can_be_completed(whole):
    def stop(done: int, total: int) -> None:
        if done > 10:
            raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        measured(ROWS, progress=stop)
    partial = caught.value.partial
    assert 10 < len(partial) <= whole.population
    same(partial.of_input(0), whole.of_input(0))
    with pytest.raises(jaxsens.InputError, match=r"resume = .*: not with inputs of several lengths"):
        measured(ROWS, resume=partial)
    with pytest.raises(jaxsens.InputError, match=r"a result of .* measurements; complete each"):
        measured(ROWS[0], resume=partial)
    k = len(partial.tokens) - 1
    done = measured(ROWS[k], resume=partial.of_input(k))
    np.testing.assert_array_equal(done.norms, whole.of_input(k).norms)


@pytest.mark.long
def test_an_interrupted_estimate_of_several_texts_has_the_mean_of_the_flips_that_it_kept():
    rows = [np.arange(12) % 3, np.arange(9) % 3]
    done: list[int] = []

    def stop(now: int, total: int) -> None:
        done.append(now)
        if now > 22:  # the 22 flips of the first input are done
            raise KeyboardInterrupt

    with pytest.raises(jaxsens.MeasurementInterrupted) as caught:
        measured(rows, progress=stop, engine=FirstOrder(verify=4))
    partial = caught.value.partial
    assert partial.mean == pytest.approx(partial.of_input(0).norms.mean(), rel=0.5)


def test_a_sample_is_divided_among_the_inputs():
    rows = [np.arange(40) % 3, [0, 1, 2], np.arange(20) % 3]
    result = measured(rows, flips=Substitute(sample=30, seed=1))
    assert len(result) == 30
    assert result.population == 2 * (39 + 2 + 19)
    drawn = np.bincount(result.inputs)
    assert drawn[1] == 2
    assert drawn[0] == pytest.approx(2 * drawn[2], abs=3)
    assert len(measured(rows, flips=Substitute(sample=10**6))) == result.population
    with pytest.raises(jaxsens.InputError, match=r"sample = 5: at least 2 of each of the 3 inputs"):
        measured(rows, flips=Substitute(sample=5))


def linear(weights: Any, tokens: Any) -> Any:
    """Flips of position i change the output by weights[i]."""
    return jnp.stack([weights[: tokens.shape[0]] @ tokens, 0.0 * tokens[0]])


def test_statistics_of_samples_weigh_each_input_by_its_flips():
    weights = np.linspace(1, 3, 200).astype(np.float32)
    long, short = np.zeros(200, int), np.zeros(20, int)
    draws = [
        measured(row, (linear, weights), flips=Substitute(2, sample=15, seed=k))
        for k, row in enumerate((long, short))
    ]
    result = jaxsens.concat(draws)
    means = [one.mean for one in draws]
    assert result.mean == pytest.approx((199 * means[0] + 19 * means[1]) / 218)
    assert result.norms.mean() != pytest.approx(result.mean, rel=1e-3)
    ends = [one.mean_interval(0.95).low for one in draws]
    assert result.mean_interval(0.9) == pytest.approx(((199 * ends[0] + 19 * ends[1]) / 218, np.inf))
    assert draws[0].quantile(0.4) < result.quantile(0.5) < draws[0].quantile(0.6)
    low, high = result.quantile_interval(0.5, 0.9)
    assert low == min(one.quantile_interval(0.5, 0.95).low for one in draws)
    assert high == max(one.quantile_interval(0.5, 0.95).high for one in draws)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::jaxsens.EstimateWarning")
def test_estimates_of_several_lengths_keep_their_own_samples():
    rows = [np.arange(12) % 3, np.arange(30) % 3]
    result = measured(rows, engine=FirstOrder(verify=12))
    parts = [measured(row, engine=FirstOrder(verify=12)) for row in rows]
    assert int(result.exact.sum()) == 24
    assert result.mean == pytest.approx((parts[0].mean * 22 + parts[1].mean * 58) / 80)
    assert result.max == max(one.max for one in parts)
    assert result.accuracy is not None
    assert result.accuracy.count == 12
    assert result.accuracy.exceeding_count is not None
    assert 0 < result.accuracy.exceeding_count <= 56
    low, high = result.mean_interval()
    assert 0 < low < result.mean < high
    for k, one in enumerate(parts):
        same(result.of_input(k), one)
        np.testing.assert_array_equal(result.of_input(k).exact, one.exact)
    mixed = jaxsens.concat([parts[0], measured(rows[1])])
    assert mixed.exact[mixed.inputs == 1].all()
    assert mixed.of_input(1).estimated is None
    assert mixed.mean == pytest.approx((parts[0].mean * 22 + measured(rows[1]).norms.mean() * 58) / 80)


def test_flips_of_groups_are_put_together():
    options = {"flips": jaxsens.Substitute([0, 1, 2], groups=[(0, 1)])}
    singles = [measured(row, **options) for row in ([0, 1, 2], [2, 2, 1, 0])]
    whole = measured([[0, 1, 2], [2, 2, 1, 0]], **options)
    for k, one in enumerate(singles):
        pairs = whole.of_input(k).to_pandas()["symbols"], one.to_pandas()["symbols"]
        assert list(pairs[0]) == list(pairs[1])
        np.testing.assert_array_equal(whole.of_input(k).norms, one.norms)
    with pytest.raises(jaxsens.InputError, match=r"results\[1\]: groups = None"):
        jaxsens.concat([singles[0], measured([0, 1, 2])])


def of_row(**options: Any) -> FlipSensitivity:
    return measured(ROWS[0], **options)


def other_function(weights: Any, tokens: Any) -> Any:
    return 2 * linear(weights, tokens)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: of_row(measure="l1"), "results[1]: measure = L1(): that of results[0] is L2()"),
        (lambda: of_row(measure=L2(outputs=[0])), "results[1]: outputs = (0,)"),
        (lambda: of_row(model=jaxsens.Transformer(CONFIG, seed=1)), "model's parameters as SHA-256"),
        (
            lambda: of_row(model=jaxsens.Transformer(CONFIG.replace(activation="tanh"), seed=0)),
            "results[1]: model, parameters and function as SHA-256",
        ),
        (
            lambda: of_row(model=jaxsens.Transformer(CONFIG.replace(dtype="float64"), seed=0)),
            "results[1]: dtype = 'float64'",
        ),
        (
            lambda: of_row(model=jaxsens.Transformer(CONFIG.replace(readout="mean"), seed=0)),
            "results[1]: readout = 'mean'",
        ),
    ],
)
def test_differences_are_refused_by_name(other, said, singles):
    with pytest.raises(jaxsens.InputError) as caught:
        jaxsens.concat([singles[0], other()])
    assert said in str(caught.value)


def test_other_functions_are_refused():
    one = of_row(measure=Function(lambda y: y[0]))
    with pytest.raises(jaxsens.InputError, match=r"results\[1\]: measure's program"):
        jaxsens.concat([one, of_row(measure=Function(lambda y: y[1]))])
    signs = jaxsens.concat([one, of_row(measure=Function(lambda y: y[0]))])
    np.testing.assert_array_equal(signs.values, np.tile(one.values, 2))


@pytest.mark.parametrize("results", [None, [], "ab", [1], ["ab"], (3,)])
def test_what_is_no_list_of_results_is_refused(results):
    with pytest.raises(jaxsens.InputError, match=r"concat: results = .*: give a list of results"):
        jaxsens.concat(results)
