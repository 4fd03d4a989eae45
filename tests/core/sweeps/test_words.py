"""Inputs depend on seed and length alone, and a file of words is checked before anything runs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens.core.base.errors import Problems
from jaxsens.core.sweeps.config import load_sweep_config, parse_sweep_config
from jaxsens.core.sweeps.inputs import (
    MOST_WORDS,
    AllWords,
    RandomWords,
    Symbols,
    WordFile,
    read_words,
)
from tests.core.sweeps.tiny import TINY, tiny_sweep
from tests.refusals import refused

BITS = Symbols(2, 2)


@given(
    n=st.integers(2, 40),
    seed=st.integers(0, 2**40),
    count=st.integers(1, 4),
    size=st.integers(2, 5),
    end=st.booleans(),
)
def test_random_words_have_their_length_and_alphabet_and_end(n, seed, count, size, end):
    symbols = Symbols(size, size if end else None)
    tokens = RandomWords(count).tokens(symbols, n, seed)
    assert tokens.shape == (count, n)
    word = tokens[:, :-1] if end else tokens
    assert ((word >= 0) & (word < size)).all()
    assert not end or (tokens[:, -1] == size).all()
    assert np.array_equal(tokens, RandomWords(count).tokens(symbols, n, seed))


def test_the_stream_of_random_words_is_pinned():
    # A changed stream would silently give the points of a directory other inputs than their keys stand for.
    assert RandomWords(2).tokens(BITS, 12, 3).tolist() == [
        [0, 0, 1, 0, 1, 1, 0, 1, 1, 0, 1, 2],
        [0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 2],
    ]
    assert RandomWords(2, "balanced").tokens(BITS, 9, 3).tolist() == [
        [1, 0, 1, 0, 0, 0, 1, 1, 2],
        [0, 1, 0, 1, 0, 0, 1, 1, 2],
    ]


@pytest.mark.needs("training")
def test_all_variants_of_a_sweep_read_the_same_inputs():
    sweep = tiny_sweep(after='[inputs]\ncount = 3\n[[variant]]\nname = "lstm"\nmodel = {kind = "lstm"}\n')
    for n in sweep.lengths:
        for seed in sweep.seeds:
            tokens = [point.tokens() for point in sweep.points if (point.n, point.seed) == (n, seed)]
            assert len(tokens) == 3
            assert all(np.array_equal(tokens[0], other) for other in tokens)


@given(
    m=st.integers(1, 30),
    size=st.integers(2, 6),
    count=st.integers(1, 3),
    seed=st.integers(0, 99),
    end=st.booleans(),
)
def test_balanced_words_have_every_symbol_equally_often_or_once_more(m, size, count, seed, end):
    symbols = Symbols(size, size if end else None)
    words = RandomWords(count, "balanced").tokens(symbols, m + end, seed)
    assert words.shape == (count, m + end)
    for word in words[:, :m]:
        often = np.bincount(word, minlength=size)
        assert often.max() - often.min() == (m % size != 0)


ENDS = """
lengths = [4, 7]
seeds = 2
[model]
alphabet_size = 2
width = 4
heads = 1
layers = 1
feed_forward = 0
[[variant]]
name = "end"
[[variant]]
name = "none"
model = {end_symbol = false}
"""


@pytest.mark.parametrize(
    "inputs", ["count = 3", 'count = 3\nkind = "balanced"', 'file = "words.txt"', 'kind = "all"']
)
def test_an_end_symbol_that_not_all_variants_have_stands_in_place_of_the_last_symbol(tmp_path, inputs):
    (tmp_path / "words.txt").write_text("0 1 0 1\n1 1 1 0\n0 0 1 1 0 0 1\n")
    sweep = parse_sweep_config(ENDS + f"[inputs]\n{inputs}\n", folder=tmp_path)
    points = {(point.variant, point.n, point.seed): point for point in sweep.points}
    for n in sweep.lengths:
        for seed in sweep.seeds:
            with_end, without = points["end", n, seed], points["none", n, seed]
            assert np.array_equal(with_end.tokens()[:, :-1], without.tokens()[:, :-1])
            assert (with_end.tokens()[:, -1] == 2).all()
            assert (without.tokens() < 2).all()
            assert with_end.key != without.key


def test_without_an_end_symbol_the_words_and_keys_are_those_of_a_sweep_of_its_own():
    both, alone = (
        parse_sweep_config(text) for text in (ENDS, ENDS.replace('name = "end"\n[[variant]]\n', ""))
    )
    assert [point.key for point in both.points if point.variant == "none"] == [
        point.key for point in alone.points
    ]
    assert "end_replaces_last" in both.points[0].expanded["inputs"]


FIRST, LAST, NONE = Symbols(2, 2, end_first=True), Symbols(2, 2), Symbols(2, None)


@pytest.mark.parametrize("words", [RandomWords(3), RandomWords(3, "balanced")])
def test_an_end_symbol_that_stands_first_is_in_front_of_the_same_word(words):
    first, last = words.tokens(FIRST, 9, 5), words.tokens(LAST, 9, 5)
    assert (first[:, 0] == 2).all()
    assert np.array_equal(first[:, 1:], last[:, :-1])
    assert words.expanded(FIRST, 9, 0) == {**words.expanded(LAST, 9, 0), "end_first": True}
    assert words.expanded(LAST, 9, 0)["end_first"] is False


def read(tmp_path, text, lengths=(4,), count=None, symbols=BITS):
    (tmp_path / "words.txt").write_text(text)
    problems = Problems("words")
    return read_words(WordFile("words.txt", count), tmp_path, symbols, lengths, problems), [
        *map(str, problems)
    ]


def test_words_of_a_file_are_taken_by_their_length_with_the_end_symbol_behind(tmp_path):
    words, problems = read(tmp_path, "0 1 0\n1 1\n\n1 0 0\n0\n", (4, 3))
    assert words is not None, problems
    assert words.tokens(BITS, 4, 0).tolist() == [[0, 1, 0, 2], [1, 0, 0, 2]]
    assert words.tokens(BITS, 3, 9).tolist() == [[1, 1, 2]]


def test_a_count_of_words_is_drawn_by_the_seed(tmp_path):
    text = "\n".join(" ".join(format(k, "05b")) for k in range(32))
    words, problems = read(tmp_path, text, (6,), count=4)
    assert words is not None, problems
    drawn = [words.tokens(BITS, 6, seed) for seed in range(4)]
    assert all(len(np.unique(tokens, axis=0)) == 4 for tokens in drawn)
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], words.tokens(BITS, 6, 0))


def test_every_problem_of_a_file_of_words_is_reported(tmp_path):
    words, problems = read(tmp_path, "0 1 2\n0 x 1\n-1 0 0\n0 1 1\n", (4, 5), count=2)
    assert words is None
    for problem, named in zip(problems, ("line 1", "line 2", "line 3", "n = 4", "n = 5"), strict=True):
        assert problem.startswith("inputs.file")
        assert named in problem


def test_the_file_is_looked_for_beside_the_config_and_must_be_there(tmp_path):
    config = tmp_path / "sweep.toml"
    config.write_text(TINY + '[inputs]\nfile = "words.txt"\n')
    refused("inputs.file", load_sweep_config, config)
    (tmp_path / "words.txt").write_text("0 1 0\n1 0 1 0 1\n")
    assert load_sweep_config(config).points[0].tokens().tolist() == [[0, 1, 0, 2]]


def every(text, lengths="[4, 6]"):
    return parse_sweep_config(TINY.replace("[4, 6]", lengths) + f"[inputs]\n{text}\n")


def test_every_word_is_measured_for_every_seed_and_has_a_key_of_its_own():
    sweep = every('kind = "all"')
    tokens = [point.tokens() for point in sweep.points]
    assert {len(words) for words in tokens} == {2**3, 2**5}
    assert all(len(np.unique(words, axis=0)) == len(words) for words in tokens)
    assert sweep.points[0].expanded["inputs"] == {"kind": "all", **vars(BITS)}
    assert sweep.points[0].key != sweep.points[1].key


def test_words_that_are_too_many_are_refused_with_the_longest_length():
    longest = int(np.log2(MOST_WORDS))
    assert every('kind = "all"', f"[{longest}, {longest + 1}]").lengths == (longest, longest + 1)
    assert "lengths up to 18" in refused("inputs.kind", every, 'kind = "all"', "[4, 19, 40]")
    refused("inputs.count", every, 'kind = "all"\ncount = 3')
    refused("inputs.kind", every, 'kind = "every"')
    for size, longest in ((3, 10), (4, 8)):
        problems = Problems("sweep")
        AllWords().check(Symbols(size, None), (longest,), problems)
        assert not problems
        AllWords().check(Symbols(size, None), (longest + 1,), problems)
        assert f"lengths up to {longest}," in str(problems[0])
