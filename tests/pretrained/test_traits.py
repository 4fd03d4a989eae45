"""Traits and changes of published models in every engine: what is measured is what two forward passes differ by."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import Softmax
from jaxsens.core.base.programs import numerics
from jaxsens.core.models.parts.schedules import Schedule
from jaxsens.core.models.parts.weighting import SinkSoftmax
from jaxsens.core.models.transformer.layered import embedded_rows, layer_of
from jaxsens.pretrained.load import ModelChanges
from tests.pretrained.folders import by_passes, write_folder
from tests.refusals import refusal, refused
from tools.pretrained_recorded import recorded

RECORDED = {(one.family, one.name): one for one in recorded()}


def model_of(folder: Path, family: str, name: str, **options: Any) -> jaxsens.pretrained.PretrainedModel:
    folder.mkdir(exist_ok=True)
    RECORDED[family, name].write(folder)
    return jaxsens.load_pretrained(folder, **options)


TRIED = pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gemma2", "defaults"),
        ("gpt_neox", "defaults"),
        ("bloom", "twelve heads"),
        ("qwen3_moe", "defaults"),
        ("modernbert", "defaults"),
        ("esm", "token dropout"),
        ("t5", "gated gelu"),
        ("phi3", "longrope, long"),
        ("gemma3_text", "defaults"),
        ("olmo2", "defaults"),
        ("albert", "defaults"),
        ("falcon", "alibi, one after the other, biases"),
        ("deberta-v2", "longest, maps of their own, no norm"),
        ("deberta-v2", "longest, maps of their own, no norm: mean"),
        ("deberta-v2", "p2c, positions, token types, older head"),
        ("nemotron", "defaults"),
        ("olmo3", "defaults"),
        ("cohere2", "defaults"),
        ("qwen2_moe", "windows, one layer without experts"),
        ("mt5", "defaults"),
        ("gemma3", "its text part"),
        ("gemma3_text", "rows that see later ones"),
    ],
)


@pytest.mark.quick(0, 1)
@TRIED
def test_every_engine_gives_what_two_forward_passes_differ_by(family, name, tmp_path):
    model, ids, readout = tried(family, name, tmp_path)
    flips = jaxsens.Substitute([5, 9], positions=[1, 7])
    exact = jaxsens.flip_sensitivity(model, ids, flips=flips, engine="vmap", readout=readout)
    expected = by_passes(
        model, ids.tolist(), exact, lambda rows: rows.mean(axis=0) if readout == "mean" else rows[readout]
    )
    np.testing.assert_allclose(exact.norms, expected, rtol=1e-8 if readout == "mean" else 1e-9)
    found = jaxsens.flip_sensitivity(model, ids, flips=flips, engine="incremental", readout=readout)
    np.testing.assert_allclose(found.norms, expected, rtol=1e-8)


@pytest.mark.quick(0, 1)
@TRIED
def test_estimates_of_nearly_equal_symbols_are_what_is_measured(family, name, tmp_path):
    model, ids, readout = tried(family, name, tmp_path)
    flips, small = jaxsens.Substitute([5, 9, 17], positions=[1, 3, 7]), nearly_equal_symbols(model)
    exact = jaxsens.flip_sensitivity(small, ids, flips=flips, engine="vmap", readout=readout)
    estimated = jaxsens.flip_sensitivity(
        small, ids, flips=flips, engine=jaxsens.FirstOrder(verify=1), readout=readout
    )
    np.testing.assert_allclose(estimated.norms, exact.norms, rtol=1e-3)


def tried(family: str, name: str, folder: Path) -> tuple[jaxsens.pretrained.PretrainedModel, np.ndarray, Any]:
    """The model of a case in float64, its input, and the row that is read, or "mean"."""
    name, _, mean = name.partition(": ")
    one = RECORDED[family, name]
    row = 4 if family in ("t5", "mt5") else 0 if one.encoder else len(one.ids) - 1
    return model_of(folder, family, name, dtype="float64"), np.array(one.ids), mean or row


def test_esm_with_its_published_activation(tmp_path):
    one = RECORDED["esm", "defaults"]
    dataclasses.replace(one, config={**one.config, "hidden_act": "gelu"}).write(tmp_path)
    np.testing.assert_allclose(
        jaxsens.load_pretrained(tmp_path, dtype="float64")(one.ids)[np.array(one.rows)],
        one.hidden,
        atol=1e-10,
    )


def nearly_equal_symbols(model: jaxsens.pretrained.PretrainedModel) -> jaxsens.pretrained.PretrainedModel:
    """A model whose symbols differ so little that a flip's change is its derivative."""
    embedding = np.asarray(model.parameters["embedding"])
    near = embedding[7] + 1e-6 * embedding
    return dataclasses.replace(model, parameters={**model.parameters, "embedding": near})


@pytest.mark.long
def test_a_mask_that_scales_all_rows_is_refused_and_is_no_neighbour(tmp_path):
    model = model_of(tmp_path, "esm", "token dropout")
    ids = RECORDED["esm", "token dropout"].ids
    for flips in (jaxsens.Mask(), jaxsens.Substitute([4, 9], positions=[2])):
        refused("flips.symbols", jaxsens.flip_sensitivity, model, ids, flips=flips)
    refused("tokens", jaxsens.flip_sensitivity, model, [*ids, 4])
    refused("ids", model, [*ids, 4])
    assert jaxsens.flip_sensitivity(model, ids, flips=jaxsens.Substitute([5, 9], positions=[2])).max > 0


_AFTER = "apply_residual_connection_post_layernorm"


@pytest.mark.parametrize(
    ("family", "name", "options", "message"),
    [
        ("mixtral", "defaults", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("olmo", "clipped", {"clip_qkv": -1.0}, "clip_qkv"),
        ("gpt_neo", "defaults", {"attention_layers": ["global"]}, "attention_layers"),
        ("smollm3", "defaults", {"no_rope_layers": [1, 2]}, "no_rope_layers"),
        ("esm", "defaults", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("t5", "defaults", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj"),
        ("albert", "defaults", {"num_hidden_groups": 2}, "num_hidden_groups"),
        ("qwen3_moe", "defaults", {"mlp_only_layers": "first"}, "mlp_only_layers"),
        ("bloom", "defaults", {_AFTER: True}, _AFTER),
        ("gemma", "defaults", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("esm", "defaults", {"hidden_act": "relu"}, "hidden_act"),
        ("deberta-v2", "defaults, one row", {"conv_kernel_size": 3}, "conv_kernel_size"),
        ("deberta-v2", "defaults, one row", {"pos_att_type": "p2c|p2p"}, "pos_att_type"),
        ("deberta-v2", "defaults, one row", {"position_buckets": 1}, "position_buckets"),
    ],
)
def test_options_that_are_not_served_are_refused_by_name(family, name, options, message, tmp_path):
    one = RECORDED[family, name]
    dataclasses.replace(one, config={**one.config, **options}).write(tmp_path)
    with refusal(f"config.json: {message}"):
        jaxsens.load_pretrained(tmp_path)


def test_a_head_of_the_other_kind_is_not_read(tmp_path):
    one = RECORDED["deberta-v2", "defaults, one row"]
    dataclasses.replace(one, config={**one.config, "legacy": True}).write(tmp_path)
    refused("output", jaxsens.load_pretrained, tmp_path, output="logits")
    refused("output", model_of, tmp_path / "t5", "t5", "defaults", output="logits")  # it has no head at all


IDS = [9, 10, 11, 12, 13, 14, 15, 9]


def tiny_model(folder: Path, family: str = "llama", **options: Any) -> jaxsens.pretrained.PretrainedModel:
    folder.mkdir(exist_ok=True)
    write_folder(folder, family, options)
    return jaxsens.load_pretrained(folder, dtype="float64")


def rows(model: jaxsens.pretrained.PretrainedModel, ids: list[int] = IDS) -> np.ndarray:
    return np.asarray(model(ids))


@pytest.mark.long
def test_a_temperature_multiplies_scores(tmp_path):
    """Queries that are log n times as large make the same scores."""
    model = tiny_model(tmp_path, "gpt2")
    scaled = []
    for k in range(2):
        with numerics("float64"):
            own = model.parameters["layers"][k]
        query = {key: math.log(8) * np.asarray(one) for key, one in own["query"].items()}
        scaled.append({**own, "query": query})
    expected = dataclasses.replace(model, parameters={**model.parameters, "layers": scaled})
    np.testing.assert_allclose(rows(ModelChanges("temperature-log").of(model)), rows(expected), rtol=1e-10)
    same = Softmax(Schedule(coefficient=1 / math.log(8), log_power=1.0))
    np.testing.assert_allclose(rows(ModelChanges(same).of(model)), rows(model), rtol=1e-10)


@pytest.mark.long
def test_a_window_and_a_mask_are_those_of_a_model_that_has_them(tmp_path):
    wide, narrow = (
        tiny_model(tmp_path / name, "mistral", sliding_window=w) for name, w in (("a", None), ("b", 3))
    )
    np.testing.assert_allclose(rows(ModelChanges(window=3).of(wide)), rows(narrow), rtol=1e-12)
    open_, causal = ModelChanges(mask="none").of(wide), rows(wide)
    assert np.abs(rows(open_)[0] - causal[0]).max() > 1e-3  # the first row sees the others now
    np.testing.assert_allclose(rows(ModelChanges(mask="future").of(open_)), causal, rtol=1e-12)
    assert open_.layered.readout == "last"


def test_stretched_positions(tmp_path):
    """Every second row of positions that are stretched by two is a row of the table; rotary angles are those of the
    linear scaling."""
    learned = tiny_model(tmp_path / "a", "gpt2")
    longer = ModelChanges(stretch=2.0).of(learned)
    assert longer.max_length == 2 * learned.max_length
    table = np.asarray(longer.parameters["positions"])
    np.testing.assert_array_equal(table[::2], learned.parameters["positions"])
    np.testing.assert_allclose(table[1], (table[0] + table[2]) / 2, rtol=1e-14)
    turned = tiny_model(tmp_path / "b", "llama", rope_scaling=None)
    linear = tiny_model(tmp_path / "c", "llama", rope_scaling={"type": "linear", "factor": 3.0})
    np.testing.assert_allclose(rows(ModelChanges(stretch=3.0).of(turned)), rows(linear), rtol=1e-10)


def test_the_first_layers_alone(tmp_path):
    model = tiny_model(tmp_path, "bert")
    first = ModelChanges(layers=1).of(model)
    assert first.layered.layers == 1
    shorter = dataclasses.replace(
        model.layered, architecture=dataclasses.replace(model.architecture, layers=1)
    )
    expected = dataclasses.replace(model, layered=shorter)
    np.testing.assert_allclose(rows(first), rows(expected), rtol=1e-12)


@pytest.mark.quick(0, 2)
@pytest.mark.parametrize(
    "changes",
    [
        ModelChanges("temperature-log"),
        ModelChanges(window=3, mask="none"),
        pytest.param(
            ModelChanges("temperature-sqrt", mask="future", stretch=1.5, layers=1), marks=pytest.mark.long
        ),
    ],
    ids=str,
)
def test_engines_measure_the_changed_model(tmp_path, changes: ModelChanges):
    model = changes.of(tiny_model(tmp_path, "llama"))
    flips = jaxsens.Substitute([5, 11, 17], positions=[1, 4])
    exact, found = (
        jaxsens.flip_sensitivity(model, IDS, flips, engine=one) for one in ("vmap", "incremental")
    )
    np.testing.assert_allclose(found.norms, exact.norms, rtol=1e-8)
    np.testing.assert_allclose(exact.norms, by_passes(model, IDS, exact, lambda rows: rows[-1]), rtol=1e-9)


def test_what_a_model_cannot_change_is_refused_by_name(tmp_path):
    RECORDED["bloom", "twelve heads"].write(tmp_path)
    model = jaxsens.load_pretrained(tmp_path)
    refused("weighting", ModelChanges(SinkSoftmax(learned=True)).of, model)
    wrong = ModelChanges("warm", 0, "past", 2.0, 9)  # pyright: ignore[reportArgumentType]
    with pytest.raises(jaxsens.InputError) as caught:
        wrong.of(model)
    for said in (
        "weighting = 'warm'",
        "window = 0",
        "mask = 'past'",
        "bloom has neither rotary nor",
        "layers = 9: at most 2",
    ):
        assert said in str(caught.value)


@pytest.mark.long
def test_a_flip_that_changes_an_expert_is_exact(tmp_path):
    """The router of the first layer chooses other experts for a row after one of the flips at least."""
    model = model_of(tmp_path, "mixtral", "defaults", dtype="float64")
    ids = np.array(RECORDED["mixtral", "defaults"].ids)

    def chosen(word: np.ndarray) -> list[set[int]]:
        n, everywhere = len(word), jnp.arange(len(word))
        x = embedded_rows(model.layered.at_length(n), model.parameters, jnp.asarray(word), everywhere)
        layer = layer_of(model.layered.at_length(n), model.parameters, 0, n)
        b = layer.attended(*layer.projected(x, everywhere), everywhere)
        own = layer.parameters["layers"][0]
        rows = x + b.reshape(n, -1) @ own["output"]["matrix"]
        scale = own["map_norm"]["scale"]
        z = rows / jnp.sqrt(jnp.mean(rows**2, axis=-1, keepdims=True) + model.architecture.epsilon) * scale
        largest = np.argsort(-np.asarray(z @ own["router"]["matrix"]), axis=-1)[:, :2]
        return [set(row.tolist()) for row in largest]

    with numerics("float64"):
        flips, before = jaxsens.Substitute([5, 9, 17, 31], positions=[1, 3, 7]), chosen(ids)
        results = [jaxsens.flip_sensitivity(model, ids, flips, engine=one) for one in ("vmap", "incremental")]
        moved = 0
        for k, (position, symbol) in enumerate(zip(results[0].positions, results[0].symbols, strict=True)):
            other = ids.copy()
            other[position] = symbol
            moved += chosen(other) != before
            expected = np.linalg.norm(np.asarray(model(other) - model(ids))[-1])
            np.testing.assert_allclose([one.norms[k] for one in results], expected, rtol=1e-8)
    assert moved
