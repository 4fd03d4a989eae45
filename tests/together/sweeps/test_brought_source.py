"""Packages bring sources of models to sweeps by entry points; a key whose package is not installed is unknown."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from jaxsens.core.base import registry
from jaxsens.core.sweep import load_sweep
from jaxsens.core.sweeps.config import parse_sweep_config
from jaxsens.core.sweeps.sources import naming
from jaxsens.core.sweeps.sweep import run_sweep
from tests.core.base.test_registry import installed
from tests.core.sweeps.tiny import quiet
from tests.refusals import refusal, refused

MODULE = """
import jax.numpy as jnp

from jaxsens.core.sweeps.sources import ModelSource, SourceKind
from jaxsens.core.sweeps.inputs import GivenWords, Symbols


class Counter(ModelSource):
    def texts(self, table, folder, lengths, problems):
        return GivenWords({n: jnp.asarray([[ord(one) % 3 for one in table.texts[:n]]]) for n in lengths}, None)


def _read(table, problems, folder):
    numbers = {"ones": 1, "twos": 2, "grown": 3}
    if table["counter"] not in numbers:
        problems.add("counter", table["counter"], "ones or twos")
        return None
    number = numbers[table["counter"]] * table.get("times", 1)

    def build(n, seed):
        return lambda tokens: jnp.stack([number * jnp.sum(tokens == 1) / tokens.size, jnp.float32(0)])

    expanded = {"type": "Counter", "number": number}
    weights = "grown" if number == 3 else "constructed"
    return Counter(weights, None, expanded, build, alphabet=Symbols(3, None), outputs=2)


def _stages(table, problems):
    return [(f"times {k}", {"times": k}) for k in table.pop("each_of", ())]


COUNTER = SourceKind(_read, ("counter", "times"), stages=_stages)
NONE = _read
"""

SWEEP = """
lengths = [4, 8]
seeds = 2
[model]
counter = "ones"
[measure]
flips = {kind = "substitute", symbols = 3}
[[variant]]
name = "one"
[[variant]]
name = "two"
model = {counter = "twos"}
"""


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """A distribution on the path whose entry point brings the key `counter`."""
    site = tmp_path / "site"
    lines = "counter = brought_counter:COUNTER\nnone = brought_counter:NONE"
    installed(site, "theirs", lines, monkeypatch, "model_sources")
    (site / "brought_counter.py").write_text(MODULE)
    yield
    sys.modules.pop("brought_counter", None)
    registry.entries.cache_clear()


@pytest.mark.usefixtures("brought")
def test_a_sweep_measures_what_another_package_brings(tmp_path):
    sweep = parse_sweep_config(SWEEP)
    assert not run_sweep(sweep, tmp_path / "out", sweep.points, quiet()).failures
    rows = load_sweep(tmp_path / "out").points
    for name, number in (("one", 1), ("two", 2)):
        largest, n = (np.asarray(rows[column][rows["variant"] == name]) for column in ("max", "n"))
        assert largest == pytest.approx(number / n)
    (first, *_) = sweep.points
    assert first.source.symbols.alphabet_size == 3
    assert first.expanded["model"] == {"type": "Counter", "number": 1}
    assert [one.outputs for one in sweep.plan.variants] == ["every coordinate"] * 2


@pytest.mark.usefixtures("brought")
def test_its_stages_are_variants_and_its_texts_are_inputs():
    text = SWEEP.replace('"ones"', '"ones"\neach_of = [2, 4]').replace('model = {counter = "twos"}', "")
    sweep = parse_sweep_config(f'{text}\n[inputs]\ntexts = "abcdefgh"')
    names = ["one times 2", "one times 4", "two times 2", "two times 4"]
    assert [one.name for one in sweep.variants] == names
    assert [one.source.expanded["number"] for one in sweep.variants] == [2, 4, 2, 4]
    assert sweep.points[0].tokens().tolist() == [[1, 2, 0, 1]]


@pytest.mark.usefixtures("brought")
@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ('"ones"', '"none"', ["model.counter"]),
        ('"ones"', '"grown"', [""]),  # an origin of weights that a sweep has no rule for
        ('counter = "ones"', "none = 1", [""]),  # no SourceKind
        ('"ones"', '"ones"\nformula = "Q_1"', ["model"]),
        ('[measure]\nflips = {kind = "substitute", symbols = 3}', "", ["measure.flips"]),
        ('counter = "ones"', 'countre = "ones"', ["model.countre", "model.alphabet_size"]),
    ],
)
def test_what_is_wrong_with_its_table_is_said_with_the_key(old, new, names):
    with refusal(*names):
        parse_sweep_config(SWEEP.replace(old, new))


def test_a_key_whose_package_is_not_installed_is_unknown_and_others_are_named(monkeypatch):
    everything = naming()
    assert everything == ("formula", "construction", "checkpoint", "python", "pretrained")
    monkeypatch.setattr(
        registry,
        "find_spec",
        lambda name: None if name == "jaxsens.formal" else find_spec(name),
    )
    registry.entries.cache_clear()
    try:
        text = SWEEP.replace("counter", "construction")
        refused("model.alphabet_size model.construction", parse_sweep_config, text)
        text = SWEEP.replace('counter = "ones"', "alphabet_size = 3").replace('counter = "twos"', "width = 8")
        assert {one.source.weights for one in parse_sweep_config(text).variants} == {"random"}
    finally:
        registry.entries.cache_clear()
