"""The recipes of docs/foreign.md, and what `from_weights` says of weights that are not as the architecture says."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import jaxsens
from jaxsens import InputError, load_pretrained
from tests.pretrained.folders import CONFIGS, write_folder
from tests.refusals import refusal, refused

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "foreign.md").read_text("utf-8")
NEEDED = {"Flax": "flax", "Equinox": "equinox", "PyTorch": "torch"}
SMALL = (
    "longest=512, width=64, layers=4, heads=4, hidden=256",
    "longest=32, width=16, layers=2, heads=2, hidden=24",
)
BEFORE = (("first=False", "first=True"), ('norms="after"', 'norms="before"'), ('"gelu"', '"relu"'))
EXACT = {"Flax": 1e-6, "Equinox": 1e-12, "PyTorch": 1e-12}
"""How near outputs are in float64. JAX's own attention, which Flax calls, has its softmax in float32."""
TOKENS = np.random.default_rng(1).integers(0, 50, 24)


def blocks(library: str) -> list[str]:
    """The module, its recipe, and what is done with both."""
    pytest.importorskip(NEEDED[library])
    section = DOCS.split(f"\n## {library}\n")[1].split("\n## ")[0]
    return re.findall(r"(?ms)^```python\n(.*?)^```$", section)


def run(code: str, names: dict[str, Any]) -> None:
    exec(compile(code, "docs/foreign.md", "exec"), names)


def in_float64(module: Any) -> Any:
    if hasattr(module, "double"):
        return module.double()
    widened = jax.tree.map(lambda x: x.astype("float64") if hasattr(x, "astype") else x, module)
    parts: list[Any] = [getattr(widened, name, None) for name in ("embed", "places")]
    for part in parts:
        if hasattr(part, "embedding"):
            part.dtype = np.float64  # an nnx.Embed keeps that of its first table
    return widened


def outputs(module: Any, tokens: np.ndarray) -> np.ndarray:
    if hasattr(module, "double"):
        torch = pytest.importorskip("torch")
        return module(torch.from_numpy(tokens)[None])[0].detach().numpy()
    return np.asarray(module(tokens))


@pytest.mark.parametrize("library", NEEDED)
def test_a_recipe_has_at_most_ten_lines(library):
    recipe = blocks(library)[1]
    assert "from_weights(" in recipe
    assert len(recipe.splitlines()) <= 10


@pytest.mark.quick(0, 1)
@pytest.mark.parametrize(("library", "changes"), [*((one, ()) for one in NEEDED), ("PyTorch", BEFORE)])
def test_a_described_model_computes_what_the_foreign_one_does(library, changes):
    definition, recipe, *_ = blocks(library)
    for old, new in changes:
        assert old in definition + recipe
        definition, recipe = definition.replace(old, new), recipe.replace(old, new)
    names: dict[str, Any] = {}
    run(definition.replace(*SMALL), names)
    run(recipe, names)
    single, mean = (
        outputs(names["module"], TOKENS),
        library == "Equinox",
    )  # whose module returns the mean row's
    ours = np.asarray(names["model"](TOKENS))
    np.testing.assert_allclose(
        ours.mean(0) if mean else ours, single, rtol=1e-5, atol=1e-5 * np.abs(single).max()
    )
    with jax.enable_x64(True):
        names["module"] = in_float64(names["module"])
        names["from_weights"] = functools.partial(jaxsens.from_weights, dtype="float64")
        run(recipe, names)
        double, wide = outputs(names["module"], TOKENS), names["model"]
        assert (wide.dtype, str(double.dtype)) == ("float64", "float64")
        ours = np.asarray(wide(TOKENS))
    np.testing.assert_allclose(
        ours.mean(0) if mean else ours,
        double,
        rtol=EXACT[library],
        atol=EXACT[library] * np.abs(double).max(),
    )
    foreign = jaxsens.from_torch(names["module"]) if library == "PyTorch" else names["module"]
    flips = jaxsens.Substitute([3, 7], positions=[0, 5, 11])
    measure = functools.partial(jaxsens.flip_sensitivity, tokens=TOKENS, flips=flips)
    readout = "last" if library == "Flax" else "mean"
    wanted = measure(foreign, engine="vmap", readout=readout)
    found = measure(wide, engine="incremental", readout=readout)
    np.testing.assert_allclose(found.values, wanted.values, rtol=1e3 * EXACT[library])
    assert wanted.values.max() > 1e-3


@pytest.mark.parametrize("family", CONFIGS)
def test_the_weights_of_a_published_model_are_those_of_its_architecture(family, tmp_path):
    write_folder(tmp_path, family)
    model = load_pretrained(tmp_path, output="logits")
    types, bias = min(1, model.architecture.token_types), "bias" in model.parameters.get("head", {})
    architecture = dataclasses.replace(
        model.architecture, token_types=types, position_offset=0, logit_bias=bias
    )
    again = jaxsens.from_weights(architecture, model.parameters, output="logits")
    assert jax.tree.all(jax.tree.map(np.array_equal, again.parameters, model.parameters))


SHAPE = jaxsens.pretrained.Architecture(4, 1, 2, 6, 5, 3, causal=True, activation="relu", tied=False)


def weights() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal

    def linear(inputs: int, outputs: int) -> dict[str, np.ndarray]:
        return {"matrix": draw((inputs, outputs)), "bias": draw(outputs)}

    norms = {name: {"scale": draw(4), "shift": draw(4)} for name in ("attention_norm", "map_norm")}
    maps = {name: linear(4, 4) for name in ("query", "key", "value", "output")}
    layer = {**norms, **maps, "up": linear(4, 6), "down": linear(6, 4)}
    return {
        "embedding": draw((5, 4)),
        "layers": [layer],
        "final_norm": norms["map_norm"],
        "head": linear(4, 5),
    }


def test_arrays_may_have_the_names_and_axes_of_libraries():
    """Linen's and PyTorch's, which store the outputs of a matrix first."""
    given = weights()
    ours = jaxsens.from_weights(SHAPE, given, output="logits", dtype="float64")
    (layer,) = given["layers"]
    heads = {"query": (4, 2, 2), "key": (4, 2, 2), "value": (4, 2, 2), "output": (2, 2, 4)}
    for name, shape in heads.items():
        bias = layer[name]["bias"].reshape(shape[1:] if name != "output" else (4,))
        layer[name] = {"kernel": layer[name]["matrix"].reshape(shape), "bias": bias}
    layer["up"] = {"weight": layer["up"]["matrix"].T, "bias": layer["up"]["bias"]}
    layer["map_norm"] = {"weight": layer["map_norm"]["scale"], "bias": layer["map_norm"]["shift"]}
    given["final_norm"] = {"scale": given["final_norm"]["scale"], "bias": given["final_norm"]["shift"]}
    given["embedding"] = {"embedding": given["embedding"]}
    theirs = jaxsens.from_weights(SHAPE, given, output="logits", dtype="float64")
    assert jax.tree.all(jax.tree.map(np.array_equal, ours.parameters, theirs.parameters))
    assert not np.array_equal(ours([0, 1]), ours([1, 0]))


def test_tables_are_cut_to_what_is_read_and_scales_get_their_offset():
    options = {"learned_positions": True, "position_offset": 2, "token_types": 2, "scale_offset": 1.0}
    given = weights() | {"positions": np.arange(20.0).reshape(5, 4), "token_types": np.eye(4)[:2]}
    made = jaxsens.from_weights(dataclasses.replace(SHAPE, **options), given).parameters
    np.testing.assert_array_equal(made["positions"], given["positions"][2:])
    np.testing.assert_array_equal(made["token_types"], given["token_types"][:1])
    scale = given["final_norm"]["scale"]
    np.testing.assert_allclose(made["final_norm"]["scale"], scale + 1.0, rtol=1e-6)


def test_every_fault_of_the_weights_is_named_at_once():
    given = weights()
    layer = given["layers"][0]
    del layer["query"]["bias"]
    layer["kye"] = layer.pop("key")
    layer["up"]["matrix"] = layer["up"]["matrix"].T
    layer["value"]["bias"] = np.arange(4)
    layer["output"]["matrix"][0, 0] = 1e200
    layer["down"] = "down.npy"
    given["final_norm"] = SimpleNamespace(weight=np.ones(4), bias=np.ones(4), eps=1e-6)
    with pytest.raises(InputError) as error:
        jaxsens.from_weights(SHAPE, given, output="logits")
    assert str(error.value).splitlines() == [
        "from_weights: 12 errors",
        "  - layers[0].down = 'down.npy': an array, or a layer of Flax, Equinox or PyTorch",
        "  - final_norm.epsilon = 1e-06: the architecture's is 1e-05",
        "  - layers.0.query.bias: missing",
        "  - layers.0.key.matrix: missing",
        "  - layers.0.key.bias: missing",
        "  - layers.0.down.matrix: missing",
        "  - layers.0.down.bias: missing",
        '  - layers.0.kye.matrix: the architecture has no such array; did you mean "layers.0.key.matrix"?',
        '  - layers.0.kye.bias: the architecture has no such array; did you mean "layers.0.key.bias"?',
        "  - layers.0.value.bias: dtype = 'int64': give floating-point numbers",
        "  - layers.0.output.matrix: numbers that are not finite in float32",
        "  - layers.0.up.matrix: shape = (6, 4): the architecture says (4, 6)",
    ]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"key_heads": 3}, "key_heads"),
        ({"windows": (2, 2)}, "windows"),
        ({"tied": True, "outputs": 3}, "outputs"),
        ({"head_activation": "gleu"}, "head_activation"),
        ({"norms": "between"}, "norms"),
        ({"activation": "gleu", "heads": 0}, "activation heads"),
    ],
)
def test_an_architecture_that_cannot_be_is_refused_by_field(changes, names):
    with refusal(*names.split()):
        jaxsens.from_weights(dataclasses.replace(SHAPE, **changes), weights())


def test_arguments_that_are_no_choice_and_symbols_that_are_not_read_are_refused():
    wrong: dict[str, Any] = {"output": "row", "dtype": "float16", "readout": -1}
    refused("architecture dtype output readout weights", jaxsens.from_weights, {}, [], **wrong)
    model = jaxsens.from_weights(dataclasses.replace(SHAPE, unread=4), weights())
    refused("ids", model, [0, 4])


def test_a_head_is_read_for_logits_only_and_may_have_any_number_of_outputs():
    given = weights()
    given["head"] = {"matrix": np.ones((4, 2)), "bias": np.zeros(2)}
    labels = dataclasses.replace(SHAPE, outputs=2)
    assert jaxsens.from_weights(labels, given, output="logits")([0, 1]).shape == (2, 2)
    assert jaxsens.from_weights(labels, given)([0, 1]).shape == (2, 4)
    assert "the model reads at most 3" in refused("ids", jaxsens.from_weights(labels, given), [0, 1, 2, 3])
