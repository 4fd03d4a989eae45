"""A config is read strictly: what is wrong is said before anything runs, all at once and with its place; its words."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import Auto, InputError, Softmax, TransformerConfig
from jaxsens.core.base.errors import Problems
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import WEIGHTINGS, AverageHard
from jaxsens.core.sweeps.config import BUILT_IN, Variant, load_sweep_config, parse_sweep_config
from jaxsens.core.sweeps.inputs import MOST_WORDS, AllWords, RandomWords, Symbols, WordFile, read_words
from jaxsens.core.sweeps.points import Measurement
from jaxsens.core.sweeps.sweep import SweepVariant
from tests.core.sweeps.tiny import TINY, tiny_sweep, tiny_text
from tests.refusals import refused


def transformer(variant: SweepVariant) -> TransformerConfig:
    config = config_of(variant)
    assert isinstance(config, TransformerConfig)
    return config


def config_of(variant: SweepVariant) -> Any:
    assert variant.source.weights == "random"
    assert variant.source.network is not None
    return variant.source.network


def test_a_config_becomes_a_sweep_with_the_defaults_written_out():
    sweep = tiny_sweep()
    assert sweep.lengths == (4, 6)
    assert sweep.seeds == (0, 1)
    assert [variant.name for variant in sweep.variants] == ["softmax", "leftmost-hard"]
    config = config_of(sweep.variants[0])
    expected = TransformerConfig(alphabet_size=2, width=4, heads=1, layers=1, feed_forward=0)
    assert config == expected
    assert sweep.measure.engine == Auto()
    assert [(p.variant, p.n, p.seed) for p in sweep.points[:3]] == [
        ("softmax", 4, 0),
        ("softmax", 4, 1),
        ("softmax", 6, 0),
    ]


def test_all_problems_are_reported_at_once_each_with_its_path():
    text = """
lenghts = [4]
lengths = [64, 32, 32, 1]
seeds = "3"
variants = ["softmx", "softmax", "softmax"]
statistics = ["mean", "q101"]
[model]
alphabet_size = 2.0
widht = 3
heads = 3
layer_norm = "both"
[inputs]
cuont = 3
[measure]
engine = "vmp"
[placement]
batch_size = 0
[[variant]]
name = "a/b"
[[variant]]
name = "deep"
model = {layers = -1, weighting = {type = "Softmax", inverse_temperature = 3}}
"""
    expected = "lenghts lengths seeds variants statistics model.alphabet_size model.widht model.heads model.layer_norm "
    expected += "inputs.cuont measure.engine placement.batch_size variant[0].name variant.deep.model.layers "
    said = refused(expected + "variant.deep.model.weighting.inverse_temperature", parse_sweep_config, text)
    assert "1 is too small" in said
    for name in ("lengths", "softmax", "width", "count", "vmap"):
        assert f'did you mean "{name}"' in said


WRONG = {
    "seeds": ["2.0", "true", "0", "[]", "[-1]", '["1"]'],
    "lengths": ["[]", "[4.0]", "8"],
    "title": ["3"],
    "statistics": ["[]", '"mean"'],
    "variants": ["[]"],
    "inputs": ["{count = 0}", '{kind = "even"}', '{file = "words.txt", kind = "balanced"}'],
    "measure": [
        '{flips = {kind = "substitute", sample = 1.5}}',
        '{measure = {kind = "l2", outputs = [0.5]}}',
    ],
    "model": [
        "{alphabet_size = true}",
        '{alphabet_size = 2, kind = "mamba"}',
        '{alphabet_size = 2, positions = ["sinusoidal", "sinusodial"]}',
        '{alphabet_size = 2, positions = {type = "Learned", max_length = 8.0}}',
    ],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key in WRONG for value in WRONG[key]])
def test_a_wrong_value_is_refused_with_its_path(key, value):
    kept = dict.fromkeys(["lengths", "variants", "model"], "")
    kept |= {"lengths": "[4, 6]", "variants": '["softmax"]', "model": "{alphabet_size = 2}"}
    kept[key] = value
    with pytest.raises(InputError) as caught:
        parse_sweep_config("\n".join(f"{name} = {text}" for name, text in kept.items()))
    assert [one.path[0] for one in caught.value.problems] == [key]


WIDE = '[[variant]]\nname = "wide"\nmodel = { alphabet_size = 2, width = 12 }\n'
LEARNED = 'positions = {type = "Learned", max_length = 5}\n'


@pytest.mark.parametrize(
    ("text", "path", "variants"),
    [
        ("[model]\nalphabet_size = 2\n", "lengths variants", 0),
        (TINY.replace("heads = 1", "heads = 3"), "model.heads", 0),  # once, and not once a variant
        (TINY + LEARNED, "lengths", 2),
        (TINY + WIDE.replace("size = 2", "size = 3"), "variants", 0),
        (f'{TINY}[measure]\nmeasure = {{kind = "l2", outputs = [1, 9]}}\n{WIDE}', "measure.measure.outputs", 2),
        (TINY + '[measure]\nengine = "difference"\n' + WIDE.replace("width = 12", 'weighting = "sparsemax"'),
         "measure.engine", 1),
    ],
)  # fmt: skip
def test_what_a_variant_cannot_do_is_found_before_anything_runs(text, path, variants):
    assert len(re.findall('variant "', refused(path, parse_sweep_config, text))) == variants


def test_a_problem_of_the_model_that_every_variant_mends_is_none():
    text = TINY.replace('variants = ["softmax", "leftmost-hard"]', "").replace("heads = 1", "heads = 3")
    sweep = parse_sweep_config(text + '[[variant]]\nname = "mended"\nmodel = {heads = 2}\n')
    assert transformer(sweep.variants[0]).heads == 2


def test_variants_of_ones_own_change_the_model_and_their_names_must_be_free():
    own = """
[[variant]]
name = "mixed"
add_positions = ["index"]
description = "both at once"
model = {layers = 2, weighting = [{type = "Softmax", inverse_temperature = "log"}, "average-hard"]}
"""
    variant = tiny_sweep(after=own).variants[-1]
    assert (variant.name, variant.description, variant.source.bounded) == ("mixed", "both at once", False)
    weighting = transformer(variant).weighting
    assert weighting == (Softmax(Schedule(log_power=1.0)), AverageHard())
    refused("variant.name", parse_sweep_config, TINY + '[[variant]]\nname = "softmax"\nmodel = {width = 8}\n')


def test_a_variant_that_has_a_built_in_ones_name_only_is_refused_where_the_label_would_be_wrong():
    own = TINY.replace('variants = ["softmax", "leftmost-hard"]', "") + '[[variant]]\nname = "{}"\n{}\n'
    said = refused("variant.name", parse_sweep_config, own.format("leftmost-hard", ""))
    assert 'variants = ["leftmost-hard"]' in said
    refused("variant.name", parse_sweep_config, own.format("unbounded", 'description = "n itself"'))
    # The label is right where [model] is that model, and one's own business where the variant changes something.
    assert len(parse_sweep_config(own.format("softmax", "")).variants) == 1
    assert len(parse_sweep_config(own.format("leftmost-hard", "model = {heads = 2}")).variants) == 1
    hard = own.replace("heads = 1", 'heads = 1\nweighting = "leftmost-hard"')
    assert len(parse_sweep_config(hard.format("leftmost-hard", "")).variants) == 1


@pytest.mark.needs("theory")
def test_a_length_beyond_what_can_be_certified_is_refused_before_anything_runs():
    text = TINY.replace("[4, 6]", "[4, 21846]")  # 2^16 / 3 symbols is 21845.3
    assert "beyond 21845" in refused("lengths", parse_sweep_config, text + "[bounds]\n")
    for kept in (text, text + "[bounds]\ncertified = false\n", TINY.replace("6]", "21845]") + "[bounds]\n"):
        parse_sweep_config(kept)


@pytest.mark.needs("training")
def test_a_variant_of_another_kind_keeps_what_its_kind_has_too():
    sweep = tiny_sweep(after='[[variant]]\nname = "lstm"\nmodel = {kind = "lstm"}\n')
    config = config_of(sweep.variants[-1])
    assert (type(config).__name__, config.width, config.layers) == ("LSTMConfig", 4, 1)
    text = TINY + '[[variant]]\nname = "lstm"\nmodel = {kind = "lstm", heads = 2}\n'
    refused("variant.lstm.model.heads", parse_sweep_config, text)


def test_a_config_may_begin_with_a_mark_but_must_be_there_and_be_toml(tmp_path):
    (tmp_path / "plain.toml").write_text(TINY, encoding="utf-8")
    (tmp_path / "marked.toml").write_text(TINY, encoding="utf-8-sig")
    plain, marked = (load_sweep_config(tmp_path / f"{name}.toml") for name in ("plain", "marked"))
    assert [point.key for point in marked.points] == [point.key for point in plain.points]
    (tmp_path / "broken.toml").write_text("lengths = [")
    (tmp_path / "deep.toml").write_text("lengths = " + "[" * 100_000)
    for name in ("none.toml", "broken.toml", "deep.toml"):
        assert name in refused("", load_sweep_config, tmp_path / name)


EVERY = "variants = [{}]".format(", ".join(f'"{name}"' for name in BUILT_IN))


@pytest.fixture(scope="module")
def sources():
    sweep = tiny_sweep('variants = ["softmax", "leftmost-hard"]', EVERY)
    return {variant.name: variant.source for variant in sweep.variants}


def test_each_built_in_variant_changes_one_thing_and_shares_the_weights_of_its_seed(sources):
    baseline = sources["softmax"].network
    for name, source in sources.items():
        changed = [
            field
            for field in TransformerConfig.__dataclass_fields__
            if getattr(source.network, field) != getattr(baseline, field)
        ]
        assert changed == {"softmax": [], "unbounded": ["positions"]}.get(name, ["weighting"]), name
        if name != "unbounded":
            assert source.network.weighting == WEIGHTINGS[name]
    baseline = sources["softmax"].build(4, 3).parameters
    for source in sources.values():
        own = source.build(4, 3).parameters
        assert jax.tree.all(jax.tree.map(np.array_equal, own.layers, baseline.layers))
        assert np.array_equal(own.embedding, baseline.embedding)
    other = sources["softmax"].build(4, 4).parameters
    assert not np.array_equal(other.embedding, baseline.embedding)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("", ["Sinusoidal", "Component"]),
        ('positions = "none"', ["Component"]),
        ('positions = ["rotary", "alternating"]', ["Rotary", "Component", "Component"]),
    ],
)
def test_the_unbounded_variant_adds_to_the_positions_that_are_there(positions, expected):
    table = BUILT_IN["unbounded"].table({"alphabet_size": 2, **tomllib.loads(positions)})
    terms = TransformerConfig(**table).position_terms
    assert [type(term).__name__ for term in terms] == expected


NETWORK = {"alphabet_size": 2, "width": 8, "heads": 2, "dtype": "float64"}
FORMULA = {"formula": "Q_1", "alphabet": "01", "condition": "unbounded", "dtype": "float32"}
PARITY = {"construction": "parity", "condition": "unbounded", "kinds": 3}


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (NETWORK, {"formula": "Q_1"}, {"dtype": "float64", "formula": "Q_1"}),
        (FORMULA, {"kind": "transformer", "width": 4}, {"dtype": "float32", "kind": "transformer", "width": 4}),
        (PARITY, {"kind": "lstm", "width": 4}, {"kind": "lstm", "width": 4}),
        (PARITY, {"construction": "first"}, {"construction": "first", "condition": "unbounded"}),
        (PARITY, {"construction": "parity", "read": "everything"}, PARITY | {"read": "everything"}),
        (PARITY, {"formula": "Q_1"}, {"condition": "unbounded", "formula": "Q_1"}),
        (FORMULA, {"construction": "parity"},
         {"construction": "parity", "condition": "unbounded", "dtype": "float32"}),
        (NETWORK | {"kind": "lstm"}, {"formula": "Q_1"}, {"dtype": "float64", "formula": "Q_1"}),
        (NETWORK, {"checkpoint": "run"}, {"checkpoint": "run"}),
        ({"checkpoint": "run"}, {"kind": "lstm", "width": 4}, {"kind": "lstm", "width": 4}),
    ],
)  # fmt: skip
@pytest.mark.needs("formal", "training")
def test_a_variant_of_another_kind_of_model_keeps_only_what_that_kind_has_too(base, changes, expected):
    assert Variant("v", changes).table(base) == expected


def with_flips(table: str, *lines: str) -> str:
    return TINY + "\n".join(["[measure]", f"flips = {table}", *lines])


def test_defaults_written_out_keep_the_key_and_every_other_flip_changes_it():
    assert Measurement().expanded(8)["flips"] == {"kind": "substitute"}
    point = tiny_sweep().points[0]
    assert tiny_sweep(after='[measure]\nflips = "substitute"\n').points[0].key == point.key
    tables = ('"repeat"', '{ kind = "repeat", times = 2 }', '"insert"', '"delete"')
    keys = {parse_sweep_config(with_flips(table)).points[0].key for table in tables}
    assert len({point.key, *keys}) == 5
    assert parse_sweep_config(with_flips('{ kind = "repeat", times = 1 }')).points[0].key in keys


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (with_flips('{ kind = "delete", times = 2 }'), "measure.flips.times"),
        (with_flips('"swap"'), "measure.flips"),
        (with_flips('{ kind = "substitute", sample = 3, seed = 1 }'), "measure.flips.seed"),
        (with_flips('"insert"', "exact_up_to = 4"), "measure.exact_up_to"),
        (with_flips('"insert"') + "\n[bounds]\n", "measure.flips"),
        (with_flips('"insert"', 'engine = "difference"'), "measure.engine"),
        (with_flips('"delete"').replace("[model]\n", "[model]\nreadout = 1\n"), "measure.flips"),
        (
            with_flips('{ kind = "repeat", times = 9 }').replace(
                "[model]\n", '[model]\npositions = { type = "Learned", max_length = 12 }\n'
            ),
            "measure.flips",
        ),
    ],
)
@pytest.mark.needs("theory")
def test_what_flips_do_not_go_with_is_an_error_of_the_config(text, match):
    refused(match, parse_sweep_config, text)


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


END, NO_END = '[[variant]]\nname = "end"\n', '[[variant]]\nname = "none"\nmodel = {end_symbol = false}\n'
ENDS = tiny_text(END + NO_END, lengths=[4, 7], variants=[])


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
    both, alone = (parse_sweep_config(text) for text in (ENDS, ENDS.replace(END, "")))
    keys = [point.key for point in both.points if point.variant == "none"]
    assert keys == [point.key for point in alone.points]
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


def test_words_of_a_file_are_taken_by_their_length_all_or_a_count_that_the_seed_draws(tmp_path):
    words, problems = read(tmp_path, "0 1 0\n1 1\n\n1 0 0\n0\n", (4, 3))
    assert words is not None, problems
    assert words.tokens(BITS, 4, 0).tolist() == [[0, 1, 0, 2], [1, 0, 0, 2]]
    assert words.tokens(BITS, 3, 9).tolist() == [[1, 1, 2]]
    text = "\n".join(" ".join(format(k, "05b")) for k in range(32))
    words, problems = read(tmp_path, text, (6,), count=4)
    assert words is not None, problems
    drawn = [words.tokens(BITS, 6, seed) for seed in range(4)]
    assert all(len(np.unique(tokens, axis=0)) == 4 for tokens in drawn)
    assert not np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], words.tokens(BITS, 6, 0))


def test_a_file_of_words_is_looked_for_beside_the_config_and_its_every_problem_reported(tmp_path):
    words, problems = read(tmp_path, "0 1 2\n0 x 1\n-1 0 0\n0 1 1\n", (4, 5), count=2)
    assert words is None
    for problem, named in zip(problems, ("line 1", "line 2", "line 3", "n = 4", "n = 5"), strict=True):
        assert problem.startswith("inputs.file")
        assert named in problem
    config = tmp_path / "sweep.toml"
    config.write_text(TINY + '[inputs]\nfile = "words.txt"\n')
    refused("inputs.file", load_sweep_config, config)
    (tmp_path / "words.txt").write_text("0 1 0\n1 0 1 0 1\n")
    assert load_sweep_config(config).points[0].tokens().tolist() == [[0, 1, 0, 2]]


def every(text, *lengths):
    return parse_sweep_config(tiny_text(f"[inputs]\n{text}\n", lengths=lengths or [4, 6]))


def test_every_word_is_measured_for_every_seed_and_too_many_are_refused():
    sweep = every('kind = "all"')
    tokens = [point.tokens() for point in sweep.points]
    assert {len(words) for words in tokens} == {2**3, 2**5}
    assert all(len(np.unique(words, axis=0)) == len(words) for words in tokens)
    assert sweep.points[0].expanded["inputs"] == {"kind": "all", **vars(BITS)}
    assert sweep.points[0].key != sweep.points[1].key
    longest = int(np.log2(MOST_WORDS))
    assert every('kind = "all"', longest, longest + 1).lengths == (longest, longest + 1)
    assert "lengths up to 18" in refused("inputs.kind", every, 'kind = "all"', 4, 19, 40)
    refused("inputs.count", every, 'kind = "all"\ncount = 3')
    refused("inputs.kind", every, 'kind = "every"')
    for size, longest in ((3, 10), (4, 8)):
        problems = Problems("sweep")
        AllWords().check(Symbols(size, None), (longest,), problems)
        assert not problems
        AllWords().check(Symbols(size, None), (longest + 1,), problems)
        assert f"lengths up to {longest}," in str(problems[0])
