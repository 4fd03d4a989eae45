"""Engines of packages: one of another package is as good as jaxsens' own; without its entry, one is refused by name."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsens
from jaxsens import EngineRefusal, InputError
from jaxsens.core.base import registry
from jaxsens.core.base.programs import PLATFORMS, compiled_for, compiling_for
from jaxsens.core.models.transformer.layers import apply
from jaxsens.core.sweeps.config import parse_sweep_config
from tests.core.sweeps.tiny import TINY
from tests.refusals import refusal, refused
from tests.small_models import small

THEIRS = '''
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.base.registry import Seed
from jaxsens.core.base.registry import kind_of
from jaxsens.core.base.errors import EngineRefusal
from jaxsens.core.engines.engine import Cost, Engine, EngineChoice
from jaxsens.core.results.statistics import Estimated


@dataclasses.dataclass(frozen=True)
class Passes(Engine):
    apply: Any

    def prepare(self, parameters, tokens):
        return tokens, self.apply(parameters, tokens)

    def output(self, parameters, prepared):
        return prepared[1]

    def changed(self, parameters, prepared, block):
        tokens, old = prepared
        flipped = jax.vmap(lambda place, symbol: tokens.at[place].set(symbol))(*block)
        changes = jax.vmap(lambda word: self.apply(parameters, word) - old)(flipped)
        return changes, jnp.zeros(len(changes), changes.dtype)

    def preferred_batch(self, n, platform):
        return 4

    def cost(self, parameters, tokens, platform):
        return Cost(0.0, 1.0, 64, 1.0, compiling=0.0)


@kind_of(AskedEngine, "another")
class Another(AskedEngine):
    """Forward passes of another package."""

    def runner(self, subject, measure):
        if subject.config is None:
            raise EngineRefusal('engine = "another": give a jaxsens transformer')
        return Passes(measure, measure.coordinates(subject.outputs), subject.apply)


@dataclasses.dataclass(frozen=True)
class Guess:
    first: Any
    seed: int

    def result(self, whole, devices, progress, ready):
        values = np.arange(len(whole.flips)) + float(self.seed)
        stratum, nothing = np.zeros(len(values), np.int8), np.full(len(values), np.nan)
        return dataclasses.replace(
            whole,
            values=values,
            resolution=np.zeros(len(values)),
            engine=EngineChoice("guess", "asked for"),
            estimated=Estimated(values, stratum, nothing),
        )


@kind_of(AskedEngine, "guess")
class Guesses(AskedEngine):
    """Guesses."""

    seed: Seed = 0
    exact: ClassVar[bool] = False

    def seeded(self, seed):
        return dataclasses.replace(self, seed=seed)

    def refusal(self, measure):
        return None if measure.kind == "l2" else "it guesses L2 alone"

    def runner(self, subject, measure):
        if self.refusal(measure):
            raise EngineRefusal(f'engine = "guess": {self.refusal(measure)}')
        return Passes(measure, None, subject.apply)

    def estimate(self, subject, measure, n, budget):
        return Guess(subject.parameters, self.seed)

    @classmethod
    def instead(cls, run):
        return f"guessing {run.flips} flips takes no time"
'''

CORE = "auto, vmap, incremental, difference"


@pytest.fixture
def bring(tmp_path, monkeypatch, installed):
    """Has a package bring engines under these entries."""

    def entries(*lines):
        monkeypatch.delitem(sys.modules, "brought_engines", raising=False)
        (tmp_path / "brought_engines.py").write_text(THEIRS)
        installed(tmp_path, "their-engines", "\n".join(lines))

    return entries


@pytest.fixture
def brought(bring):
    bring("guess = brought_engines:Guesses", "another = brought_engines:Another")


def measured(**options) -> jaxsens.FlipSensitivity:
    return jaxsens.flip_sensitivity(jaxsens.Transformer(small(layers=1), seed=0), [0, 1, 1, 0, 1], **options)


def test_an_engine_of_another_package_measures_by_its_name(brought, tmp_path):
    found, known = measured(engine="another"), measured(engine="vmap")
    np.testing.assert_allclose(found.values, known.values, rtol=1e-5)
    assert (found.engine.name, found.engine.why) == ("another", "asked for")
    assert measured(engine=found.asked.engine).values.tolist() == found.values.tolist()
    found.save(tmp_path / "found.parquet")
    assert jaxsens.load_result(tmp_path / "found.parquet").asked.engine == found.asked.engine
    told = jaxsens.explain(jaxsens.Transformer(small(), seed=0), 5, engine="another")
    assert (told.engine.name, told.flips, told.operations) == ("another", len(found), len(found))


def test_what_it_does_not_serve_it_refuses_and_edits_are_refused_for_it(brought):
    with pytest.raises(EngineRefusal):
        jaxsens.flip_sensitivity(lambda tokens: tokens.sum() / 4.0, [0, 1], 2, engine="another")
    with pytest.raises(EngineRefusal):
        measured(flips="delete", engine="another")
    refused("engine.times", measured, engine={"kind": "another", "times": 2})


@pytest.mark.long
@pytest.mark.needs("first_order")
def test_it_is_listed_in_the_error_for_an_unknown_engine_and_not_imported(brought):
    for used in (None, "first-order"):
        if used is not None:
            measured(engine=used)
        assert f"one of {CORE}, another, first-order, guess" in refused("engine", measured, engine="anothr")
    assert "brought_engines" not in sys.modules


@pytest.mark.needs("first_order")
def test_an_estimating_engine_of_another_package_estimates_and_is_told_of_by_explain(brought):
    found = measured(engine={"kind": "guess", "seed": 3})
    assert found.values.tolist() == [3.0 + k for k in range(len(found))]
    assert not found.exact.any()
    with refusal("remaining.engine"):
        _ = found.remaining
    with pytest.raises(EngineRefusal):
        measured(engine="guess", measure="l1")
    model = jaxsens.Transformer(small(), seed=0)
    lines = str(jaxsens.explain(model, 5).instead).splitlines()
    assert lines[0].startswith('engine="first-order" would take about')
    assert lines[1] == f"guessing {len(found)} flips takes no time"
    assert jaxsens.explain(model, 5, measure="decision").instead == lines[1]
    assert jaxsens.explain(model, 5, engine="guess").instead == lines[0]


@pytest.mark.needs("first_order")
def test_a_sweep_reads_it_and_gives_it_the_seed_of_each_point(brought):
    text = TINY.replace('["softmax", "leftmost-hard"]', '["softmax"]')
    config = parse_sweep_config(f'{text}\n[measure]\nexact_up_to = 4\nengine_beyond = "guess"\n')
    at_6 = config.measure.engine_at(6)
    assert (at_6.table(), at_6.seeded(2).table()) == ({"kind": "guess"}, {"kind": "guess", "seed": 2})
    model, tokens = jaxsens.Transformer(small(), seed=0), np.zeros((1, 6), int)
    assert config.measure.flip_sensitivity(model, tokens, seed=2).values[0] == 2.0
    text += '\n[measure]\nexact_up_to = 4\nengine_beyond = "another"\n'
    refused("measure.engine_beyond", parse_sweep_config, text)


@pytest.mark.parametrize("entry", ["vmap = {}:Another", "mine = {}:Another", "mine = {}:Passes"])
def test_an_entry_that_brings_no_engine_of_its_name_is_refused(bring, entry):
    bring(entry.format("brought_engines"))
    refused("", measured, engine=entry.split()[0])


@pytest.mark.usefixtures("installed")
def test_without_its_entry_first_order_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: ())
    refused("engine", measured, engine="first-order")
    assert measured().engine.name in CORE
    assert jaxsens.explain(jaxsens.Transformer(small(), seed=0), 5).instead is None


def test_auto_never_chooses_it_though_it_costs_nothing(brought):
    assert measured().engine.name in CORE
    assert jaxsens.explain(jaxsens.Transformer(small(layers=3), seed=0), 40).engine.name in CORE


def test_an_engine_of_another_package_is_known_by_its_name_and_imported_when_used(tmp_path, installed):
    (tmp_path / "brought.py").write_text("ENGINE = 'an engine'\n")
    installed(tmp_path, "theirs", "theirs = brought:ENGINE")
    assert "theirs" in registry.entries("engines")
    assert "brought" not in sys.modules
    assert registry.load("engines", "theirs") == "an engine"


def test_two_packages_of_one_name_are_refused_with_both(tmp_path, installed):
    installed(tmp_path / "a", "first-package", "theirs = a:ENGINE")
    installed(tmp_path / "b", "second-package", "theirs = b:ENGINE")
    with pytest.raises(InputError, match=r":ENGINE and .:ENGINE"):
        registry.entries("engines")


def test_a_package_of_jaxsens_that_is_not_there_is_left_out(tmp_path, installed):
    installed(tmp_path, "short", "absent = jaxsens.absent_package.engine:Engine")
    assert "absent" not in registry.entries("engines")


def test_a_program_is_traced_for_the_platform_it_is_for_and_not_for_the_one_at_hand():
    """On a CPU long attention goes by head, in blocks; a GPU takes all rows at once. JAX keeps both apart."""
    config = jaxsens.TransformerConfig(alphabet_size=2, width=8, heads=2, layers=1, readout="mean")
    parameters = jaxsens.Transformer(config).parameters
    tokens = jax.ShapeDtypeStruct((512,), jnp.int32)

    def loops() -> int:
        traced = jax.jit(apply, static_argnums=0).trace(config, parameters, tokens)
        return str(traced.jaxpr).count("scan[")

    assert compiled_for() is PLATFORMS["cpu"]
    before = loops()
    with compiling_for("gpu"):
        assert compiled_for() is PLATFORMS["gpu"]
        assert loops() < before
    assert (compiled_for(), loops()) == (PLATFORMS["cpu"], before)
