"""Theorem 1 as an algorithm: restrictions leave free what was asked, and the output depends on what they say.

Corollary 2: for every hard-attention model two words that it cannot tell apart and the language can.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxsens import Substitute, compile_formula, flip_sensitivity
from jaxsens.core.models.parts.masks import SlidingWindow
from jaxsens.core.models.parts.score_positions import RelativeBias
from jaxsens.core.sweeps.job import run
from jaxsens.theory.hard_attention import restrict as restricting
from jaxsens.theory.hard_attention.checker import check
from jaxsens.theory.hard_attention.restrict import misclassified_pair, restrict
from jaxsens.theory.hard_attention.restriction import Restriction, RestrictionRefused
from jaxsens.theory.tables.restrictions import restrictions_job, table
from tests.core.sweeps.tiny import printed, quiet
from tests.refusals import refused
from tests.theory.hard_models import assert_true, hard, last_one, looked_up, really_depends

MODELS = {
    "sinusoidal": {},
    "ties": {"positions": "none", "heads": 1},
    "ties, rightmost, depth 3": {"positions": "none", "weighting": "rightmost-hard", "layers": 3},
    "future, learned": {"mask": "future", "positions": "learned"},
    "past": {"mask": ("past", "strict-past"), "readout": 1, "weighting": "rightmost-hard"},
    "rotary, normalised": {"positions": "rotary", "layer_norm": "pre", "activation": "gelu"},
    "alibi, normalised, strict": {
        "positions": "alibi",
        "layer_norm": "post",
        "mask": "strict-future",
        "readout": 4,
    },
    "windows, partial alibi": {
        "mask": (SlidingWindow(4), SlidingWindow(3)),
        "positions": ("sinusoidal", "partial-alibi"),
    },
    "positions by layer": {
        "layer_positions": (RelativeBias(8, 4), "partial-rotary"),
        "head_width": 4,
        "weighting": "rightmost-hard",
    },
    "additive": {"scores": "additive", "positions": "index", "feed_forward": 0},
    "float32": {"dtype": "float32", "logits": 3, "activation": "tanh"},
}


def obeys(seed: int, **changes: Any) -> None:
    model = hard(seed, **changes)
    # With everything free nothing is settled by fixing: the cases alone must be right.
    for fraction, settle in ((1.0, False), (0.6, False), (0.3, True)):
        restriction = restrict(model, 6, fraction, settle=settle, most_values=10_000)
        assert restriction.free.sum() >= fraction * 6
        assert_true(model, restriction)
        verdict = check(restriction, model, fraction)
        assert verdict.accepted, verdict.problems


@pytest.mark.quick(1, 5)
@pytest.mark.parametrize("name", MODELS)
def test_every_word_obeys_the_certificate_and_the_set_of_inputs(name):
    obeys(0, **MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(1, 6))
def test_every_word_of_more_models_obeys_the_certificate(name, seed):
    obeys(seed, **{"layers": 2 + seed % 2, **MODELS[name]} if "mask" not in MODELS[name] else MODELS[name])


def test_a_known_row_with_two_possible_vectors_counts_by_the_worse():
    model = hard(3, layers=3, **MODELS["float32"])
    restriction = restrict(model, 6, 1.0, settle=False, most_values=10_000)
    assert any(
        len(keys) > 1 for layer in restriction.certificate.layers for case in layer for keys in case.keys
    )
    verdict = check(restriction, model)
    assert verdict.accepted, verdict.problems


@pytest.mark.long
def test_three_symbols_obey_the_certificate():
    model = hard(2, alphabet_size=3)
    restriction = restrict(model, 6, 0.8, settle=False)
    assert_true(model, restriction)
    assert check(restriction, model).accepted
    some = restrict(model, 6, 0.8, symbols=(0, 2), settle=False)
    assert set(np.unique(some.complete(np.random.default_rng(0), 20)[:, some.free])) == {0, 2}
    assert_true(model, some)


def test_the_set_of_inputs_is_not_larger_than_it_need_be():
    model = last_one(layers=1)
    restriction = restrict(model, 6, 5 / 6, fixed={2: 1})
    # The last 1 is at position 2 or after it; what is before cannot be seen to matter.
    assert restriction.depends_on == (3, 4, 5)
    assert really_depends(model, restriction) == {3, 4, 5}


def test_k_open_keys_make_k_plus_one_cases():
    restriction = restrict(last_one(layers=2), 14, 13 / 14, fixed={0: 1}, settle=False, most_values=20)
    cases = restriction.certificate.row(0, 13)
    assert len(cases) == 14
    assert sorted(case.keys[0][0] for case in cases) == list(range(14))


@pytest.mark.parametrize("n", [64, 128])
def test_local_attention_is_settled_row_by_row(n):
    model = last_one()
    restriction = restrict(model, n, 0.5)
    assert restriction.c <= 1
    assert restriction.free_fraction >= 0.5
    # No single key serves all rows: each needs a 1 fixed near it.
    assert restriction.stages["layer 0: greedy"] > n / 8
    gaps = np.diff(np.flatnonzero(restriction.values == 1))
    assert gaps.max() <= 1 + max(restricting.ALLOWED)
    assert check(restriction, model, 0.5).accepted


def test_compiled_formulas_are_restricted():
    model = compile_formula("Y (Q_0 S Q_1)", alphabet="01", condition="leftmost-hard", dtype="float64")
    restriction = restrict(model, 48, 0.5)
    assert restriction.c <= 1
    assert check(restriction, model, 0.5).accepted
    free = np.random.default_rng(0)
    word = restriction.complete(free)[0]
    assert {model.accepts(other) for other in restriction.vary(word, free, 8)} == {model.accepts(word)}


def test_what_is_fixed_beforehand_stays_and_the_end_symbol_can_be():
    model = hard(3)
    end = model.config.end_of_sequence
    assert end == 2
    restriction = restrict(model, 40, 0.5, fixed={0: 1, 7: 0, 39: end})
    assert restriction.values[[0, 7, 39]].tolist() == [1, 0, end]
    assert restriction.fixed == 3
    assert restriction.free.sum() == 40 - 3 - sum(restriction.stages.values()) >= 20
    assert 39 not in restriction.depends_on
    words = restriction.complete(np.random.default_rng(0), 5)
    assert (words[:, ~restriction.free] == restriction.values[~restriction.free]).all()


def test_the_refusal_says_what_grew_too_large_or_that_the_greedy_stage_settled_nothing(monkeypatch):
    with pytest.raises(
        RestrictionRefused, match=r"position \d+ may have 16 values or more after layer 0.*larger n"
    ):
        restrict(last_one(), 40, 1.0, most_values=16)
    monkeypatch.setattr(restricting, "cover", lambda *_: {})
    with pytest.raises(RestrictionRefused, match="did not settle every head"):
        restrict(last_one(), 64, 0.5, most_values=20)


@pytest.mark.long
def test_flips_outside_the_set_change_nothing_at_all():
    model = hard(4)
    restriction = restrict(model, 64, 0.5)
    generator = np.random.default_rng(0)
    words = restriction.complete(generator, 4)
    outside = flip_sensitivity(model, words, flips=Substitute(positions=restriction.irrelevant.tolist()))
    assert len(outside) == 4 * len(restriction.irrelevant) > 0
    assert outside.max == 0.0
    # The measurement is not blind: the readout's own symbol does matter.
    assert flip_sensitivity(model, words, flips=Substitute(positions=[63])).max > 0


@pytest.mark.parametrize("depth", [1, 2])
def test_c_does_not_grow(depth):
    found = []
    for n in (64, 128, 256):
        restriction = restrict(hard(5, layers=depth), n, 0.5)
        assert restriction.free_fraction >= 0.5
        found.append(restriction.c)
    assert max(found) <= 1


@pytest.mark.slow
def test_c_does_not_grow_up_to_long_inputs():
    assert [restrict(hard(5, layers=1), n, 0.5).c for n in (1024, 4096)] == [1, 1]
    for model in (hard(5), last_one()):
        restriction = restrict(model, 1024, 0.5)
        assert restriction.c <= 1
        assert check(restriction, model, 0.5).accepted


def test_depth_1_leaves_almost_everything_free():
    restriction = restrict(hard(6, layers=1), 512, 0.99)
    assert restriction.c <= 1
    assert 512 - restriction.free.sum() <= 4  # a key a head and readout symbol


def test_no_layers_depend_on_the_readout_alone():
    model = hard(0, layers=0)
    assert restrict(model, 5, 1.0).depends_on == (4,)
    assert check(restrict(model, 5, 1.0), model).accepted


def test_a_saved_restriction_comes_back(tmp_path):
    model = hard(1)
    restriction = restrict(model, 12, 0.7)
    restriction.save(tmp_path / "r.json")
    loaded = Restriction.load(tmp_path / "r.json")
    assert (loaded.values == restriction.values).all()
    assert loaded.certificate == restriction.certificate
    assert (loaded.depends_on, loaded.stages) == (restriction.depends_on, restriction.stages)
    assert check(loaded, model).accepted


def test_a_file_that_holds_no_sound_restriction_is_refused(tmp_path):
    path = tmp_path / "r.json"
    assert "r.json': no such file" in refused("path", Restriction.load, path)
    restrict(hard(1), 12, 0.7).save(path)
    path.write_text(path.read_text().replace('"fixed": 0', '"fixed": 1'))
    assert "checksum" in refused("path", Restriction.load, path)
    for content in ('{"format": 7}', "[]"):
        path.write_text(content)
        assert "not written by jaxsens" in refused("path", Restriction.load, path)


def test_words_are_drawn_from_sound_arguments_only():
    restriction, generator = restrict(hard(0), 6, 0.5, fixed={0: 1}), np.random.default_rng(0)
    refused("generator count", restriction.complete, 0, -1)
    word = restriction.complete(generator)[0]
    elsewhere, unknown = word.copy(), word.copy()
    elsewhere[0] = 0
    unknown[restriction.free] = 2
    for given in (word[None], [[0], 1], elsewhere, unknown):
        refused("word", restriction.vary, given, generator)
    refused("word generator count", restriction.vary, elsewhere, None, count=True)
    assert restriction.vary(word.tolist(), generator, np.int64(2)).shape == (2, 6)  # pyright: ignore[reportArgumentType]


def test_models_that_the_theorem_is_not_about_and_bad_arguments_are_refused():
    for changes in (
        {"weighting": ("leftmost-hard", "average-hard")},
        {"weighting": "softmax"},
        {"weighting": "sparsemax"},
        {"readout": "mean"},
        {"centred_scores": True},
    ):
        refused("model", restrict, hard(0, **changes), 8)
    assert "a jaxsens Transformer" in refused("model", restrict, lambda tokens: tokens, 8)
    wrong: dict[str, Any] = {"n": 0, "free_fraction": 1.5, "most_values": 1, "seed": -1}
    refused(" ".join(wrong), restrict, hard(0), **wrong)
    message = refused("fixed symbols", restrict, hard(0), 8, fixed={9: 0, 1: 7}, symbols=(0, 0))
    assert "{9: 0}" in message
    assert "{1: 7}" in message
    refused("model symbols fixed", restrict, None, 8, fixed={9: 0}, symbols=(0, 0))
    refused("fixed", restrict, hard(0), 8, fixed=dict.fromkeys(range(5), 0))
    for options in ({"fixed": [1]}, {"symbols": 2}, {"symbols": ([0], [1])}):
        refused(" ".join(options), restrict, hard(0), 6, **options)


def test_whole_numbers_of_numpy_are_whole_numbers():
    model = hard(0)
    mine = restrict(model, 6, 0.5, fixed={0: 1}, symbols=(0, 1))
    numpy = restrict(
        model,
        np.int64(6),  # pyright: ignore[reportArgumentType]
        np.float32(0.5),  # pyright: ignore[reportArgumentType]
        fixed={np.int64(0): np.int32(1)},  # pyright: ignore[reportArgumentType]
        symbols=np.array([0, 1]),
    )
    assert numpy.values.tolist() == mine.values.tolist()
    assert numpy.symbols == mine.symbols
    assert all(type(symbol) is int for symbol in numpy.symbols)
    assert numpy.certificate == mine.certificate


@pytest.mark.parametrize("seed", range(4))
def test_keys_equal_by_luck_of_rounding_are_no_ties_of_the_builder(seed):
    x = np.random.default_rng(seed).random(3).tolist()
    model = looked_up([x, x[::-1], [0.0, 0.0, 0.0]], 1.0, keys=(1.0, 1.0, 1.0), dtype="float32")
    restriction = restrict(model, 4, 0.5, settle=False)
    assert_true(model, restriction)
    assert check(restriction, model).accepted


@pytest.mark.long
def test_the_table_measures_what_it_says():
    console = quiet()
    outcome = run(restrictions_job(numbers=(5,), lengths=(16, 32), free_fraction=0.5), console)
    assert (outcome.finished, outcome.exit_code) == (4, 0)
    assert "4/4  5: none, rightmost-hard, depth 2, n = 32: " in printed(console)
    rows = outcome.records
    assert [(row.depth, row.n) for row in rows] == [(1, 16), (1, 32), (2, 16), (2, 32)]
    for row in rows:
        assert row.accepted
        assert row.c <= 1
        assert row.largest_change == 0
        assert row.words == 32
        assert row.free_fraction >= 0.5
        assert row.pairs == ("parity", "dyck-1")
    lines = table(rows).splitlines()
    assert len(lines) == 4
    assert "| 2/2 | 0 | 4/4 |" in lines[2]


def is_even(word: np.ndarray) -> bool:
    return int(word.sum()) % 2 == 0


def is_balanced(word: np.ndarray) -> bool:
    heights = np.cumsum(1 - 2 * word)
    return heights.min() >= 0 and heights[-1] == 0


HARD_MODELS = {
    "random": lambda: hard(0),
    "ties": lambda: hard(1, positions="none", weighting="rightmost-hard"),
    "local": last_one,
    "depth 1": lambda: hard(2, layers=1),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", HARD_MODELS)
@pytest.mark.parametrize(("language", "member"), [("parity", is_even), ("dyck-1", is_balanced)])
def test_the_words_are_told_apart_by_the_language_and_not_by_the_model(name, language, member):
    model = HARD_MODELS[name]()
    pair = misclassified_pair(model, language, 48)
    assert member(pair.member)
    assert not member(pair.non_member)
    assert np.flatnonzero(pair.member != pair.non_member).tolist() == [pair.position]
    assert pair.position in pair.restriction.irrelevant
    for word in (pair.member, pair.non_member):
        assert (np.asarray(model(word)) == pair.output).all()
        fixed = ~pair.restriction.free
        assert (word[fixed] == pair.restriction.values[fixed]).all()


def test_the_word_may_end_in_the_end_of_sequence_symbol():
    model = hard(3)
    pair = misclassified_pair(model, "dyck-1", 41, end_symbol=True)
    assert pair.member[-1] == pair.non_member[-1] == 2
    assert is_balanced(pair.member[:-1])
    assert not is_balanced(pair.non_member[:-1])


def test_a_model_that_looks_for_the_first_closing_bracket_needs_brackets_fixed_at_the_ends():
    model = last_one(weighting="leftmost-hard", mask="none")
    # Left to itself the restriction settles all heads by a closing bracket at the start: no word is balanced.
    assert restrict(model, 48, 0.25).values[0] == 1
    pair = misclassified_pair(model, "dyck-1", 48)
    assert pair.restriction.fixed > 0
    assert is_balanced(pair.member)


def test_a_formula_that_says_yes_to_one_says_yes_to_the_other():
    model = compile_formula("Q_0 S Q_1", alphabet="01", condition="leftmost-hard", dtype="float64")
    pair = misclassified_pair(model, "parity", 32)
    assert model.accepts(pair.member) == model.accepts(pair.non_member)


def test_bad_arguments_and_a_length_too_short_are_refused():
    for language, n, name in (("dyck-2", 8, "language"), ("dyck-1", 7, "n"), ("parity", 1, "n")):
        refused(name, misclassified_pair, hard(0), language, n)
    refused("model free_fraction seed", misclassified_pair, None, "parity", 8, "a", end_symbol=True, seed=-1)
    refused("end_symbol", misclassified_pair, hard(0, end_symbol=False), "parity", 8, end_symbol=True)
    assert "Softmax" in refused("model", misclassified_pair, hard(0, weighting="softmax"), "parity", 8)
    with pytest.raises(RestrictionRefused, match="larger n or a smaller free_fraction"):
        misclassified_pair(last_one(), "parity", 2, free_fraction=1.0)


def test_a_wrong_certificate_would_be_noticed(monkeypatch):
    real = restricting.restrict

    def lying(model, n, *rest, **options):
        found = real(model, n, *rest, **options)
        object.__setattr__(found, "values", np.where(np.arange(n) == n - 1, -1, 1))
        object.__setattr__(found, "depends_on", ())
        return found

    monkeypatch.setattr(restricting, "restrict", lying)
    with pytest.raises(RuntimeError, match="outputs differ"):
        misclassified_pair(hard(0), "parity", 16)
