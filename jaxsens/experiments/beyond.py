"""What a sweep measures beyond `exact_up_to`: the estimates of some variants, a random sample of the flips of others.

The first-order engine serves softmax and sigmoid alone. Hard attention and sparsemax, and variants that `estimate`
leaves out, are measured exactly there, on `sample_beyond` random flips a point.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxsens.errors import InputError, Problems
from jaxsens.experiments.points import FIRST_ORDER, Measurement
from jaxsens.experiments.sweep import SweepVariant
from jaxsens.sensitivity.adapters import measurable
from jaxsens.sensitivity.choice import choose
from jaxsens.strict import did_you_mean

_SAMPLE = "give sample_beyond = K to measure K random flips of it at each longer input"


def check_estimates(measure: Measurement | None, lengths: Sequence[int], problems: Problems) -> None:
    """Notes arguments that say nothing where they stand, and those that do not go together."""
    if measure is None:
        return
    if measure.engine == FIRST_ORDER and measure.exact_up_to is not None:
        remedy = (
            f'not with engine = "{FIRST_ORDER}", which estimates at every length: leave one of the two out'
        )
        problems.add("measure.exact_up_to", measure.exact_up_to, remedy)
    for name in ("sample_beyond", "estimate"):
        if getattr(measure, name) is not None and measure.exact_up_to is None:
            remedy = (
                "beyond which length? Give exact_up_to, the longest inputs of which all flips are measured"
            )
            problems.add(f"measure.{name}", getattr(measure, name), remedy)
    if measure.sample is not None and measure.sample_beyond is not None:
        remedy = f"sample = {measure.sample} is the sample at every length: leave one of the two out"
        problems.add("measure.sample_beyond", measure.sample_beyond, remedy)
    if not measure.estimates:
        remedy = f'only for estimates: give engine = "{FIRST_ORDER}" or exact_up_to, or leave it out'
        for name in ("sketch", "verify"):
            if getattr(measure, name) is not None:
                problems.add(f"measure.{name}", getattr(measure, name), remedy)
        return
    if measure.exact_up_to is not None and lengths and not any(map(measure.is_beyond, lengths)):
        remedy = f"no length is above it: the longest is {max(lengths)}; leave it out, or give longer lengths"
        problems.add("measure.exact_up_to", measure.exact_up_to, remedy)
    if measure.sketch is not None and measure.norm != "l2":
        problems.add("measure.sketch", measure.sketch, f'only for norm = "l2", not "{measure.norm}"')


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
    if variants and sampled == named:
        for name in ("sketch", "verify"):
            if getattr(measure, name) is not None:
                remedy = "no variant is estimated: leave it out"
                problems.add(f"measure.{name}", getattr(measure, name), remedy)
    return sampled


def _is_sampled(variant: SweepVariant, measure: Measurement, problems: Problems) -> bool:
    where = f'variant "{variant.name}"'
    if measure.estimate is not None and variant.name not in measure.estimate:
        if measure.sample_beyond is None:
            problems.messages.append(f"measure.estimate: {where} is not named: name it, or {_SAMPLE}")
        return True
    refused = _refusal(variant, measure)
    if refused is None:
        return False
    if measure.estimate is not None:
        problems.messages.append(f"measure.estimate: {where}: {refused}; leave it out of the list")
    elif measure.sample_beyond is None:
        problems.messages.append(f"measure.exact_up_to: {where}: {refused}; or {_SAMPLE}")
    return True


def _refusal(variant: SweepVariant, measure: Measurement) -> InputError | None:
    """Why the first-order engine does not serve a variant; None if it does."""
    try:
        choose(measurable(variant.source.build(0)), FIRST_ORDER, measure.norm, None, 2)
    except InputError as error:
        return error
    return None
