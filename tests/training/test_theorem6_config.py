"""The config of the Theorem 6 experiment is read strictly, and nothing runs before all of its problems are told."""

from __future__ import annotations

import pytest

from jaxsens.core.engines.options import Vmap
from jaxsens.languages import Parity
from jaxsens.training.config import TrainConfig
from jaxsens.training.theorem6.run import load_theorem6_config, parse_theorem6_config
from tests.refusals import refused
from tests.training.tiny import PREDICTION, RECOGNITION, THEOREM6, TRANSFORMER, write_training

INLINE = """
lengths = [4]
[[model]]
name = "lstm"
[model.train]
"""
DYCK = """
language = {name = "2dyck"}
task = "recognition"
model = {kind = "lstm", width = 4}
optimiser = {steps = 10}
"""
LEARNED = TRANSFORMER.replace('"inverse"', '{type = "Learned", max_length = 16}')


def test_models_are_trained_by_a_file_or_a_table_or_set_by_hand(tmp_path):
    train = write_training(tmp_path)
    (tmp_path / "theorem6.toml").write_text(THEOREM6)
    read = load_theorem6_config(tmp_path / "theorem6.toml")
    lstm, rnn = read.model
    assert lstm.train == TrainConfig.from_toml(train)
    assert lstm.line == "lstm, trained on 1 to 3 symbols in 4 steps"
    assert (rnn.language, rnn.task, rnn.train) == (Parity(0.5), "prediction", None)
    assert (read.lengths, read.seeds, read.words, read.inputs, read.fit_from) == ((2, 4, 6), (0, 1), 4, 1, 2)
    assert read.measure.engine == Vmap()
    assert read.text == THEOREM6
    (inline,) = parse_theorem6_config(INLINE + PREDICTION).model
    assert inline == lstm


EVERYTHING = """
lengths = [4, 2]
words = 1
sedes = 3
[measure]
engine = "psychic"
[[model]]
name = "a/b"
exact = "rnn"
[[model]]
name = "c"
[model.train]
optimiser = {steps = 0}
"""
PROBLEMS = (
    "lengths words sedes measure.engine model[0].name model[1].train.language model[1].train.optimiser.steps"
)
ONE = 'lengths = [4]\n[[model]]\nname = "a"\n'
OUTPUTS = INLINE.replace("[[model]]", '[measure]\nmeasure = { kind = "l2", outputs = [2] }\n[[model]]')
SOFT = f'{THEOREM6}[[model]]\nname = "soft"\ntrain = "soft.toml"\n'


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (EVERYTHING, PROBLEMS),
        ("lengths = [4]\n", "model"),
        (ONE, "model[0].train"),
        (ONE + 'exact = "rnn"\ntrain = "lstm.toml"\n', "model[0].train"),
        (ONE + "train = 3\n", "model[0].train"),
        (ONE + 'train = "no.toml"\n', "model[0].train"),
        (ONE + 'exact = "rnn"\n', "model[0].end_probability"),
        (ONE + 'exact = "rnn"\nend_probability = 2.0\n', "model[0].end_probability"),
        (ONE + 'exact = "gru"\n', "model[0].exact"),
        (ONE + 'train = "lstm.toml"\nend_probability = 0.5\n', "model[0].end_probability"),
        (ONE + 'train = "lstm.toml"\n[[model]]\nname = "a"\ntrain = "lstm.toml"\n', "model.name"),
        (INLINE.replace("[4]", "[4, 32]") + LEARNED, "lengths"),
        (INLINE.replace("[4]", "[4, 5, 7]") + DYCK, "lengths"),
        (OUTPUTS + RECOGNITION, "measure.measure.outputs"),
        (SOFT.replace('"vmap"', '"difference"'), "measure.engine"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path_before_anything_is_trained(tmp_path, text, paths):
    write_training(tmp_path, TRANSFORMER, "soft.toml")
    write_training(tmp_path)
    refused(paths, parse_theorem6_config, text, "config", tmp_path)
    assert parse_theorem6_config(OUTPUTS + PREDICTION).measure.measure.outputs == (2,)
