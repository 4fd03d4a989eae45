"""A training config is read strictly, with every problem at once, and written so that reading gives it back."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsens import Softmax, TransformerConfig
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.languages import Parity, language
from jaxsens.training import LSTMConfig
from jaxsens.training.baselines import ConvolutionConfig
from jaxsens.training.config import DataConfig, EvaluationConfig, OptimiserConfig, Stage, TrainConfig
from tests.refusals import refused
from tests.training.tiny import table, tiny

FULL = """
task = "prediction"
seed = 7

[language]
name = "2dyck"
open_probability = 0.4

[model]
kind = "transformer"
width = 8
heads = 2
layers = 1
feed_forward = 0
weighting = { type = "Softmax", inverse_temperature = "log", by = "query" }
positions = ["sinusoidal", { type = "Learned", max_length = 65 }]
dtype = "float64"

[data]
lengths = [2, 16]
distinct = 3
spacing = 2
batch = 5
steps_per_call = 4
curriculum = [{ step = 0, longest = 8 }, { step = 20, longest = 16 }]
targets = "sampled"

[optimiser]
steps = 40
learning_rate = 1
schedule = "constant"
warmup = 3
clip = 0
weight_decay = 0.1

[evaluation]
every = 8
lengths = [64, 2]
words = 3

[checkpoint]
every = 12
keep = 1
"""


def test_every_key_of_a_file_reaches_the_config(tmp_path):
    (tmp_path / "train.toml").write_text(FULL)
    config = TrainConfig.from_toml(tmp_path / "train.toml")
    assert config.language == language("2dyck", open_probability=0.4)
    assert (config.task, config.seed, config.boundary) == ("prediction", 7, 4)
    assert isinstance(config.model, TransformerConfig)
    assert config.model.weighting == Softmax(Schedule(log_power=1.0), by="query")
    assert (config.model.alphabet_size, config.model.logits, config.model.mask) == (4, 5, "future")
    stages = (Stage(0, 8), Stage(20, 16))
    assert config.data == DataConfig((2, 16), 3, 2, 5, 4, stages, "sampled")
    assert config.optimiser == OptimiserConfig(40, 1, "constant", 3, 0, 0.1)
    assert config.evaluation == EvaluationConfig(8, (64, 2), 3)
    assert dataclasses.astuple(config.checkpoint) == (12, 1)


@pytest.mark.parametrize(
    ("kind", "task"),
    [
        *itertools.product(["transformer", "lstm", "rnn"], ["prediction", "recognition"]),
        ("convolution", "recognition"),
    ],
)
def test_a_config_written_as_json_and_read_again_is_the_same(kind, task):
    config = tiny(task=task, model={"kind": kind}, data={"curriculum": [{"step": 0, "longest": 4}]})
    assert config.model.logits == (3 if task == "prediction" else 2)
    assert TrainConfig.from_table(json.loads(json.dumps(config.table()))) == config


def test_whole_numbers_of_numpy_are_written_like_pythons():
    as_numpy: Any = np.int64
    config = TrainConfig(
        language=Parity(),
        model=LSTMConfig(2, width=as_numpy(4)),
        optimiser=OptimiserConfig(steps=as_numpy(40)),
        data=DataConfig(lengths=(as_numpy(2), as_numpy(8)), curriculum=(Stage(as_numpy(0), as_numpy(8)),)),
        seed=as_numpy(3),
    )
    assert TrainConfig.from_table(json.loads(json.dumps(config.table()))) == config
    assert "np." not in repr(config)


def test_all_problems_of_a_file_are_reported_at_once_with_their_paths(tmp_path):
    text = """
        task = "predict"
        seed = -1
        modle = 1
        [language]
        name = "parity"
        end_probability = 2
        [model]
        kind = "lstm"
        widht = 8
        layers = 1.5
        logits = 3
        [data]
        batch = "8"
        curriculum = [{ step = 0, long = 3 }]
        [optimiser]
        step = 10
        [evaluation]
        every = -3
        lengths = [4, 4]
        [checkpoint]
        keep = 0
    """
    (tmp_path / "train.toml").write_text(text)
    names = "modle task seed language.end_probability model.widht model.layers model.logits data.batch"
    names += " data.curriculum[0].longest data.curriculum[0].long optimiser.step optimiser.steps"
    names += " evaluation.every evaluation.lengths checkpoint.keep"
    message = refused(names, TrainConfig.from_toml, tmp_path / "train.toml")
    assert message.startswith(f"{tmp_path / 'train.toml'}: 15 errors")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"language": 3}, "language"),
        ({"language": {"name": "party"}}, "language.name"),
        ({"language": {"start_probability": 0.1}}, "language.start_probability"),
        ({"model": 3}, "model"),
        ({"model": {"kind": "gru"}}, "model.kind"),
        ({"model": {"width": 0}}, "model.width"),
        ({"model": {"kind": "transformer", "mask": "none"}}, "model.mask"),
        ({"model": {"kind": "transformer", "layers": 2, "mask": ["future", "past"]}}, "model.mask"),
        ({"model": {"kind": "convolution"}}, "model.kind"),
        ({"data": {"lengths": [3, 2]}}, "data.lengths"),
        ({"data": {"lengths": [0, 2]}}, "data.lengths"),
        ({"data": {"lengths": [1, 2, 3]}}, "data.lengths"),
        ({"data": {"spacing": 3}}, "data.lengths"),
        ({"data": {"batch": 0}}, "data.batch"),
        ({"data": {"distinct": 0}}, "data.distinct"),
        ({"data": {"targets": "soft"}}, "data.targets"),
        ({"data": {"curriculum": [{"step": 2, "longest": 4}]}}, "data.curriculum[0].step"),
        ({"data": {"curriculum": [{"step": 0, "longest": 3}]}}, "data.curriculum[0].longest"),
        ({"data": {"curriculum": [{"step": 0, "longest": 1}]}}, "data.curriculum[0].longest"),
        (
            {"data": {"curriculum": [{"step": 0, "longest": 3}, {"step": 3, "longest": 4}]}},
            "data.curriculum[1].step",
        ),
        ({"data": {"curriculum": [{"step": 0, "longest": 4}, {"step": 2, "longest": 4}]}}, "data.curriculum"),
        (
            {"data": {"curriculum": [{"step": 0, "longest": 3}, {"step": 12, "longest": 4}]}},
            "data.curriculum[1].step",
        ),
        (
            {"data": {"spacing": 2, "curriculum": [{"step": 0, "longest": 3}, {"step": 2, "longest": 4}]}},
            "data.curriculum[0].longest",
        ),
        ({"optimiser": {"steps": 13}}, "optimiser.steps"),
        ({"optimiser": {"warmup": 12}}, "optimiser.warmup"),
        ({"optimiser": {"learning_rate": 0.0}}, "optimiser.learning_rate"),
        ({"optimiser": {"clip": -1.0}}, "optimiser.clip"),
        ({"optimiser": {"schedule": "cosine"}}, "optimiser.schedule"),
        ({"evaluation": {"every": 3}}, "evaluation.every"),
        ({"evaluation": {"lengths": []}}, "evaluation.lengths"),
        ({"evaluation": {"words": 1}}, "evaluation.words"),
        ({"checkpoint": {"every": 5}}, "checkpoint.every"),
        ({"checkpoint": {"every": 0}}, "checkpoint.every"),
        (
            {"model": {"kind": "transformer", "positions": {"type": "Learned", "max_length": 8}}},
            "evaluation.lengths",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(changes, problem):
    refused(problem, TrainConfig.from_table, table(**changes))


def test_lengths_that_are_never_evaluated_are_not_checked():
    model = {"kind": "transformer", "positions": {"type": "Learned", "max_length": 8}}
    for evaluation in ({"every": 0}, {"every": 0, "lengths": [8]}):
        assert tiny(model=model, evaluation=evaluation).evaluation.every == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": LSTMConfig(3)}, "model.alphabet_size"),
        ({"model": LSTMConfig(2, logits=2)}, "model.logits"),
        ({"model": LSTMConfig(2, end_symbol=False)}, "model.end_symbol"),
        ({"model": LSTMConfig(2, readout="mean")}, "model.readout"),
        ({"model": ConvolutionConfig(2)}, "model.kind"),
        ({"model": "lstm"}, "model"),
        ({"language": "parity"}, "language"),
        ({"optimiser": {"steps": 10}}, "optimiser"),
        ({"checkpoint": EvaluationConfig()}, "checkpoint"),
        ({"task": "both"}, "task"),
        ({"seed": True}, "seed"),
    ],
)
def test_what_cannot_be_trained_is_refused_when_made_in_python_too(changes, problem):
    sound = {"language": Parity(0.3), "model": LSTMConfig(2), "optimiser": OptimiserConfig(10)}
    refused(problem, TrainConfig, **{**sound, **changes})
    for names, call in (
        ("steps", lambda: OptimiserConfig(steps=1.0)),  # pyright: ignore[reportArgumentType]
        ("learning_rate", lambda: OptimiserConfig(10, float("nan"))),
        ("lengths", lambda: DataConfig(lengths=(1,))),  # pyright: ignore[reportArgumentType]
        ("curriculum", lambda: DataConfig(curriculum=[Stage(0, 64)])),  # pyright: ignore[reportArgumentType]
        ("step longest", lambda: Stage(-1, 0)),
    ):
        refused(names, call)


def test_the_curriculum_lets_lengths_grow_as_it_says():
    stages = (Stage(0, 4), Stage(10, 8), Stage(30, 16))
    data = DataConfig(lengths=(1, 16), distinct=4, curriculum=stages)
    assert [data.longest(step) for step in (0, 9, 10, 29, 30, 1000)] == [4, 4, 8, 8, 16, 16]
    assert [data.lengths_at(step) for step in (0, 10, 30)] == [(1, 4), (1, 6, 8), (1, 6, 11, 16)]


@given(
    least=st.integers(1, 5), places=st.integers(0, 12), spacing=st.integers(1, 3), distinct=st.integers(1, 15)
)
def test_lengths_are_spaced_evenly_within_their_bounds_and_hold_the_longest(least, places, spacing, distinct):
    largest = least + places * spacing
    lengths = DataConfig(lengths=(least, largest), distinct=distinct, spacing=spacing).lengths_at(0)
    assert lengths == tuple(sorted(set(lengths)))
    assert len(lengths) == min(distinct, places + 1)
    assert lengths[-1] == largest
    assert lengths[0] == (least if distinct > 1 else largest)
    assert all((n - least) % spacing == 0 for n in lengths)
    steps = {b - a for a, b in itertools.pairwise(lengths)}
    assert not steps or max(steps) - min(steps) <= spacing
