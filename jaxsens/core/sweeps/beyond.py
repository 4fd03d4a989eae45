"""What a sweep measures beyond `exact_up_to`: the estimates of some variants, a random sample of the flips of others.

Variants that the estimating engine does not serve, as those of hard attention and sparsemax, and variants that
`estimate` leaves out, are measured exactly there, on `sample_beyond` random flips a point.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxsens.core.base.errors import InputError, Problems
from jaxsens.core.base.strict import did_you_mean
from jaxsens.core.choose import choose
from jaxsens.core.engines.options import estimating
from jaxsens.core.models.adapters import as_model
from jaxsens.core.sweeps.points import NOT_INSTALLED, Measurement
from jaxsens.core.sweeps.sweep import SweepVariant

_SAMPLE = "give sample_beyond = K to measure K random flips of it at each longer input"


def check_estimates(measure: Measurement | None, lengths: Sequence[int], problems: Problems) -> None:
    """Notes arguments that say nothing where they stand, and those that do not go together."""
    if measure is None:
        return
    seeded = {"flips": measure.flips, "engine": measure.engine, "engine_beyond": measure.engine_beyond}
    for name, one in seeded.items():
        if one is not None and (seed := one.settings().get("seed")) is not None:
            problems.add(f"measure.{name}.seed", seed, "the seed of each point draws; leave it out")
    if not measure.engine.exact and measure.exact_up_to is not None:
        remedy = f'not with engine = "{measure.engine.kind}", which estimates at every length: leave one of the two out'
        problems.add("measure.exact_up_to", measure.exact_up_to, remedy)
    beyond = {"sample_beyond": measure.sample_beyond, "estimate": measure.estimate}
    beyond["engine_beyond"] = None if measure.engine_beyond == estimating() else measure.engine_beyond
    for name, value in beyond.items():
        if value is not None and measure.exact_up_to is None:
            remedy = (
                "beyond which length? Give exact_up_to, the longest inputs of which all flips are measured"
            )
            problems.add(f"measure.{name}", value, remedy)
    if measure.flips.sample is not None and measure.sample_beyond is not None:
        remedy = f"sample = {measure.flips.sample} is the sample at every length: leave one of the two out"
        problems.add("measure.sample_beyond", measure.sample_beyond, remedy)
    if measure.exact_up_to is not None and lengths and not any(map(measure.is_beyond, lengths)):
        remedy = f"no length is above it: the longest is {max(lengths)}; leave it out, or give longer lengths"
        problems.add("measure.exact_up_to", measure.exact_up_to, remedy)
    engine, asked = measure.engine_beyond, measure.measure
    refusal = None if engine is None else engine.refusal(asked)
    if engine is not None and refusal is not None and type(engine)().refusal(asked) is None:
        problems.note("measure.engine_beyond", refusal)  # its options do not suit a measure that it estimates
    if engine is not None and engine.exact:
        own = estimating()
        remedy = (
            "it estimates: leave it out" if own is None else f"it estimates: leave it out, or give {own.kind}"
        )
        problems.add("measure.engine_beyond", engine, remedy)


def sampled_variants(
    variants: Sequence[SweepVariant], measure: Measurement | None, lengths: Sequence[int], problems: Problems
) -> frozenset[str]:
    """The names of the variants of which flips are sampled beyond `exact_up_to`; the others are estimated there.

    Notes a variant that can be neither, unknown names in `estimate`, and arguments that no variant needs.
    """
    if measure is None or not any(map(measure.is_beyond, lengths)):
        return frozenset()
    named = {variant.name for variant in variants}
    for name in dict.fromkeys(measure.estimate or ()):
        if name not in named:
            remedy = f"no variant of this sweep is called this{did_you_mean(name, named)}"
            problems.add("measure.estimate", name, remedy)
    sampled = frozenset(variant.name for variant in variants if _is_sampled(variant, measure, problems))
    if variants and not sampled and measure.sample_beyond is not None:
        remedy = (
            "every variant is estimated beyond exact_up_to: leave it out, or name in estimate fewer variants"
        )
        problems.add("measure.sample_beyond", measure.sample_beyond, remedy)
    if variants and sampled == named and measure.engine_beyond != estimating():
        remedy = "no variant is estimated: leave it out"
        problems.add("measure.engine_beyond", measure.engine_beyond, remedy)
    return sampled


def _is_sampled(variant: SweepVariant, measure: Measurement, problems: Problems) -> bool:
    where = f'variant "{variant.name}"'
    if measure.estimate is not None and variant.name not in measure.estimate:
        if measure.sample_beyond is None:
            problems.note("measure.estimate", f"{where} is not named: name it, or {_SAMPLE}")
        return True
    if (engine := measure.engine_beyond) is None:
        refusal = NOT_INSTALLED
    else:
        try:  # options that do not suit are said once, by `check_estimates`
            choose(as_model(variant.source.example), type(engine)(), measure.flips, measure.measure, 2)
            return False
        except InputError as error:
            refusal = str(error)
    if measure.estimate is not None:
        problems.note("measure.estimate", f"{where}: {refusal}; leave it out of the list")
    elif measure.sample_beyond is None:
        problems.note("measure.exact_up_to", f"{where}: {refusal}; or {_SAMPLE}")
    return True
