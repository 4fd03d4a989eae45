"""Attention statistics against loops over single rows and keys, and `[attention]` in a sweep."""

from __future__ import annotations

import dataclasses
import inspect
import math
from functools import partial
from itertools import product
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxsens
from jaxsens import load_sweep
from jaxsens.analysis import attention_statistics, statistics
from jaxsens.analysis.tables.sweep import ATTENTION_STATISTICS, AttentionTable
from jaxsens.core.base import errors
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.masks import MASKS, SlidingWindow
from jaxsens.core.models.transformer.layers import layered_transformer
from jaxsens.core.report.report import build_report
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sweep import run_sweep
from tests import reference
from tests.core.sweeps.tiny import problems_of, quiet, tiny_text
from tests.refusals import refused
from tests.small_models import random_parameters, small, tying
from tests.together.flip_sensitivity.test_incremental import Odd, odd_weights, two_apart
from tests.together.flip_sensitivity.test_texts import MODEL, SPELLER

N = 6
HARD = list(product(("leftmost-hard", "rightmost-hard", "average-hard"), MASKS))
SOFT = list(product(("softmax", "temperature-log", "sparsemax"), MASKS))


def specified(weights: np.ndarray, sees: np.ndarray) -> dict[str, np.ndarray]:
    """The statistics of one head from its weights (n, n), 0 for what a row does not see, one number at a time."""
    n = len(weights)
    found = {name: np.full(n, math.nan) for name in ("largest", "entropy", "first", "total", "received")}
    for i in range(n):
        if not any(sees[i]):
            continue
        total = math.fsum(weights[i])
        shares = [w / total for w in weights[i] if w > 0]
        found["largest"][i], found["first"][i], found["total"][i] = max(weights[i]), weights[i, 0], total
        found["entropy"][i] = -math.fsum(p * math.log(p) for p in shares)
    for j in range(n):
        seeing = [weights[i, j] for i in range(n) if sees[i, j]]
        if seeing:
            found["received"][j] = math.fsum(seeing) / len(seeing)
    return found


def check(
    found: jaxsens.analysis.AttentionStatistics, weights: list[list[np.ndarray]], sees: list[np.ndarray]
) -> None:
    """Compares all statistics with those of these weights, by layer and head, and what each layer's rows see."""
    n = found.n
    for k, heads in enumerate(weights):
        seeing = [i for i in range(n) if any(sees[k][i])]
        for h, matrix in enumerate(heads):
            expected = specified(matrix, sees[k])
            if found.readout == "mean":
                expected["read"] = matrix[seeing].mean(axis=0) if seeing else np.zeros(n)
            else:
                expected["read"] = matrix[n - 1 if found.readout == "last" else int(found.readout)]
            for name, values in expected.items():
                measured = getattr(found, name)[k, h]
                np.testing.assert_allclose(
                    measured, values, rtol=1e-10, atol=1e-12, err_msg=f"{name} {k} {h}"
                )


def weights_of_transformer(config: Any, parameters: Any, tokens: Any, monkeypatch: Any) -> Any:
    """The reference's attention weights by layer and head, each (n, n), and what each layer's rows see."""
    rows: list[list[float]] = []
    own = reference.weights

    def kept(*arguments: Any) -> Any:
        rows.append(own(*arguments))
        return rows[-1]

    monkeypatch.setattr(reference, "weights", kept)
    reference.activations(config, parameters, tokens)
    n, given = len(tokens), iter(rows)
    weights, sees = [], []
    for k in range(config.layers):
        mask = reference.of_layer(config.mask, k)
        sees.append(np.array([[reference.visible(mask, i, j) for j in range(n)] for i in range(n)]))
        heads = []
        for _ in range(reference.of_layer(config.heads, k)):
            matrix = np.zeros((n, n))
            for i in range(n):
                matrix[i, sees[k][i]] = np.array(next(given), float)
            heads.append(matrix)
        weights.append(heads)
    return weights, sees


@pytest.mark.quick(1, 1)
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_every_weighting_under_every_mask_as_single_rows_and_keys_say(kind, monkeypatch):
    if kind == "hard":
        config, parameters = tying("dot-product", readout="mean")
    else:
        config = small(
            layers=len(SOFT),
            weighting=tuple(weighting for weighting, _ in SOFT),
            mask=tuple(mask for _, mask in SOFT),
            positions=("sinusoidal", "alibi"),
            layer_norm="pre",
        )
        parameters = random_parameters(config)
    tokens = np.array([0, 1, 1, 2, 0, 1])
    weights, sees = weights_of_transformer(config, parameters, tokens, monkeypatch)
    monkeypatch.setattr(statistics, "SCORES", 4 * 2 * N)  # blocks of four rows, the last of which overlaps
    found = attention_statistics(jaxsens.Transformer(config, parameters=parameters), tokens)
    check(found, weights, sees)
    if kind == "hard":
        ties = np.exp(found.entropy[[HARD.index(("average-hard", "none"))]])
        assert ties.max() > 1.5  # there are ties
        np.testing.assert_allclose(ties, ties.round(), rtol=1e-12)
        assert set(found.largest[HARD.index(("leftmost-hard", "future"))].ravel()) == {1.0}


def weights_of_layered(model: Any, parameters: Any, tokens: np.ndarray) -> tuple[Any, Any]:
    """Weights of a `Layered` by layer and head, and what rows see, one row and one pair of rows at a time."""
    n, kept, sees = len(tokens), [], []
    rows = [np.asarray(model.embed(parameters, tokens[i], i), float) for i in range(n)]
    for k in range(model.layers):
        attention = model.attention(k)
        parts = [[np.asarray(part) for part in model.project(parameters, k, rows[i], i)] for i in range(n)]
        positions = [jnp.asarray(i) for i in range(n)]
        sees.append(np.array([[bool(attention.sees(i, j)) for j in positions] for i in positions]))
        matrices = []
        for h in range(attention.heads):
            group = h // (attention.heads // (attention.key_heads or attention.heads))
            matrix = np.zeros((n, n))
            for i in range(n):
                seen = [j for j in range(n) if sees[k][i, j]]
                s = {
                    j: float(model.score(parameters, k, h, parts[i][0][h], parts[j][1][group])) for j in seen
                }
                for j in seen:
                    added = model.position_score(k, h, i, j)
                    s[j] += 0.0 if added is None else float(added)
                powers = {j: math.exp(s[j] - max(s.values())) for j in seen}
                for j in seen:
                    matrix[i, j] = powers[j] / math.fsum(powers.values())
            matrices.append(matrix)
        kept.append(matrices)
        values = [np.stack([part[2][h // 2] for h in range(attention.heads)]) for part in parts]
        attended = [
            np.stack(
                [sum(matrices[h][i, j] * values[j][h] for j in range(n)) for h in range(attention.heads)]
            )
            for i in range(n)
        ]
        rows = [np.asarray(model.merge(parameters, k, rows[i], attended[i]), float) for i in range(n)]
    return kept, sees


def test_a_model_of_your_own_with_grouped_heads_windows_and_hidden_keys(monkeypatch):
    model = Odd(masks=(two_apart, SlidingWindow(2)), near=True, layers=2)
    parameters, tokens = odd_weights(), np.array([0, 6, 3, 3, 1])
    with numerics("float64"):
        weights, sees = weights_of_layered(model, parameters, tokens)
    monkeypatch.setattr(statistics, "SCORES", 4 * 2 * len(tokens))
    for readout in ("mean", 1):
        found = attention_statistics((model, parameters), tokens, readout=readout)
        assert found.readout == readout
        check(found, weights, sees)


def test_layers_with_fewer_heads_have_nan_for_the_others():
    config = small(heads=(1, 3), weighting=("softmax", "average-hard"))
    model = jaxsens.Transformer(config)
    own = attention_statistics(model, [0, 1, 2, 1, 0])
    assert own.largest.shape == (2, 3, 5)
    assert np.isnan(own.largest[0, 1:]).all()
    assert not np.isnan(own.largest[1]).any()
    layered = attention_statistics(
        (layered_transformer(config), model.parameters), [0, 1, 2, 1, 0], readout="last"
    )
    for name in ("largest", "entropy", "first", "total", "received", "read"):
        np.testing.assert_allclose(getattr(own, name), getattr(layered, name), rtol=1e-12, atol=1e-14)
    table = own.to_pandas()
    assert list(table.columns) == ["layer", "head", "largest", "entropy", "first", "total"]
    assert table["largest"].iloc[4] == pytest.approx(own.largest[1, 1].mean())
    assert np.isnan(table["entropy"].iloc[1])
    assert "n=5, 2 layers, 3 heads" in repr(own)
    empty = attention_statistics(jaxsens.Transformer(small(layers=0)), [0, 1])
    assert "0 layers, 0 heads; means: largest=nan" in repr(empty)
    assert len(empty.to_pandas()) == 0


def test_means_leave_out_rows_that_see_nothing():
    config = small(layers=1, mask="strict-future")
    found = attention_statistics(jaxsens.Transformer(config), [0, 1, 2])
    assert np.isnan(found.largest[0, :, 0]).all()
    np.testing.assert_allclose(found.largest[0, :, 1], 1)
    np.testing.assert_allclose(found.mean("largest")[0], found.largest[0, :, 1:].mean(axis=-1))
    refused("statistic", found.mean, "received")


def test_what_is_refused(monkeypatch):
    measure, tokens, transformer = attention_statistics, [0, 1, 1], jaxsens.Transformer(small())
    lstm = jaxsens.training.LSTM(jaxsens.training.LSTMConfig(alphabet_size=2, width=4))
    for model in (lstm, lambda tokens: tokens.sum() * 1.0):
        refused("model", measure, model, tokens)
    refused("readout tokens", measure, transformer, [tokens, tokens], readout=None)
    broken = dataclasses.replace(transformer.parameters, embedding=np.full((4, 6), np.nan))
    refused("model", measure, jaxsens.Transformer(small(), parameters=broken), tokens)
    monkeypatch.setattr(errors, "machine_memory", lambda: 1000)
    refused("tokens", measure, (Odd(masks=("none",) * 2), odd_weights()), tokens)


@pytest.mark.quick(1)
@pytest.mark.parametrize("layered", [False, True])
def test_memory_grows_with_n_and_not_with_its_square(layered):
    config = small(layers=2, heads=1, dtype="float32")
    parameters = jax.tree.map(jnp.asarray, jaxsens.Transformer(config).parameters)
    attending = layered_transformer(config) if layered else config

    def temporary(n: int) -> int:
        program = jax.jit(
            partial(inspect.unwrap(statistics._reduced), attending, statistics._statistics, None)
        )
        lowered = program.lower(parameters, jnp.zeros(n, jnp.int32))
        analysed = lowered.compile().memory_analysis()
        assert analysed is not None
        return analysed.temp_size_in_bytes

    shorter, longer = temporary(8192), temporary(32768)
    assert longer < 8 * shorter  # 16 times as many scores
    assert longer < 4 * 32768**2 / 50


def test_a_text_is_encoded():
    written = attention_statistics(SPELLER, "cabba")
    np.testing.assert_array_equal(written.tokens, [2, 0, 1, 1, 0])
    assert (written.readout, written.dtype) == ("last", "float32")
    np.testing.assert_allclose(written.read, attention_statistics(MODEL, [2, 0, 1, 1, 0]).read, 1e-5)


AFTER = """mask = "strict-future"
[inputs]
count = 2
[measure]
flips = { kind = "substitute", positions = [0, 2] }
[[variant]]
name = "recurrent"
model = { kind = "lstm" }
"""
CONFIG = tiny_text(AFTER, lengths=[4, 8, 16], variants=["average-hard"], heads=[1, 2], layers=2)
TABLE = '[attention]\nrows = "read"\n'


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep measured without attention statistics, and then, in the same directory, with them."""
    folder = tmp_path_factory.mktemp("attention")
    before, sweep = parse_sweep_config(CONFIG), parse_sweep_config(CONFIG + TABLE)
    assert [point.key for point in before.points] == [point.key for point in sweep.points]
    assert run_sweep(before, folder, before.points, quiet()).computed == 12
    assert not (folder / "attention.csv").exists()
    return folder, sweep, run_sweep(sweep, folder, sweep.points, quiet())


@pytest.mark.long
def test_points_without_the_statistics_are_measured_again_and_no_others(swept):
    folder, sweep, outcome = swept
    assert (outcome.computed, outcome.finished) == (6, 12)  # the recurrent network has no attention
    assert run_sweep(sweep, folder, sweep.points, quiet()).computed == 0


@pytest.mark.long
def test_the_table_has_the_means_over_words_rows_and_flipped_keys(swept):
    folder, sweep, _ = swept
    table = pd.read_csv(folder / "attention.csv")
    assert tuple(table.columns) == AttentionTable.columns
    assert len(table) == 6 * 3  # one head and two
    point = next(point for point in sweep.points if point.variant == "average-hard" and point.n == 8)
    model = point.model()
    row = table.query("n == 8 and layer == 1 and head == 1").to_dict("records")[0]
    words = [jaxsens.analysis.attention_statistics(model, word) for word in point.tokens()]
    for name in ("largest", "entropy", "first"):
        each = [getattr(word, name)[1, 1] for word in words]
        assert row[name] == pytest.approx(
            np.mean([values[1:].mean() for values in each])
        )  # row 0 sees nothing
        assert row[f"{name}_read"] == pytest.approx(np.mean([values[7] for values in each]))
    assert row["flipped"] == pytest.approx(np.mean([word.received[1, 1, [0, 2]] for word in words]))
    assert row["flipped_read"] == pytest.approx(np.mean([word.read[1, 1, [0, 2]] for word in words]))


@pytest.mark.long
def test_the_report_shows_each_statistic_by_layer(swept):
    folder, _, _ = swept
    data = load_sweep(folder)
    report = build_report(data)
    section = next(section for section in report.sections if section.heading == "Attention")
    assert [figure.name for figure in section.figures] == [
        f"attention-{name}" for name in ATTENTION_STATISTICS
    ]
    assert "the row that is read" in section.paragraphs[0]
    axes = section.figures[0].figure.axes
    assert [one.get_xlabel() for one in axes] == ["input length n (symbols)"] * 2
    (first, second) = section.tables[0].rows
    assert (first[:2], second[:2]) == (("average-hard", "1"), ("average-hard", "2"))
    table = pd.read_csv(folder / "attention.csv").query("n == 16 and layer == 1")
    assert second[2] == f"{np.median(table.groupby('seed')['largest_read'].median()):.3g}"
    # The same rows as medians of all rows, and with a power of n that is known.
    known = [row | {"largest": 3.0 * row["n"] ** -0.5} for row in data.results["attention"]]
    (powers,) = AttentionTable().sections(data, known)
    assert powers.tables[0].rows[1][3].startswith("\N{MINUS SIGN}0.50")
    (each,) = AttentionTable(heads="each").sections(data, data.results["attention"])
    assert [row[:2] for row in each.tables[0].rows if row[1] == "2"] == [
        ("average-hard, head 1", "2"),
        ("average-hard, head 2", "2"),
    ]
    assert not AttentionTable().sections(data, [])
    assert "no rule for the rows some" in refused(
        "", AttentionTable(rows=cast(Any, "some")).sections, data, [{}]
    )


def test_what_a_sweep_cannot_have_is_refused():
    (problem,) = problems_of(CONFIG.replace('["average-hard"]', "[]") + TABLE)
    assert (
        problem
        == "attention: no variant is a transformer, whose attention can be looked into: leave the table out"
    )
    problems = problems_of(CONFIG + '[attention]\nrows = "some"\nhead = 1\n')
    assert [problem.split(" ")[0].rstrip(":") for problem in problems] == ["attention.rows", "attention.head"]
