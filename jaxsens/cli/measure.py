"""`jaxsens measure`: one model on one input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxsens.cli.measuring import MEASURED_BY, MeasuringOptions, OutputOptions
from jaxsens.cli.models import InputOptions, TextOptions
from jaxsens.cli.shared import flags_named, programs_kept
from jaxsens.core.base.errors import InputError, collecting

if TYPE_CHECKING:
    from jaxsens.core.sweeps.single import Summary
    from jaxsens.core.sweeps.sources import ModelSource


def measure(
    request: Annotated[InputOptions, tyro.conf.arg(name="")] = InputOptions(),  # noqa: B008, RUF100 - frozen
    published: tyro.conf.OmitArgPrefixes[TextOptions] = TextOptions(),  # noqa: B008, RUF100 - frozen
    measuring: tyro.conf.OmitArgPrefixes[MeasuringOptions] = MeasuringOptions(),  # noqa: B008, RUF100 - frozen
    output: tyro.conf.OmitArgPrefixes[OutputOptions] = OutputOptions(),  # noqa: B008, RUF100 - frozen
) -> int:
    """Measure one model on one input, and print the largest flips.

    For example: jaxsens measure --model alphabet_size=2 --n 64

    Args:
        request: The model and its input, and where programs are kept.
        published: Of a published model on a text.
        measuring: How flips are measured.
        output: What is printed and written.
    """
    source: Any = None
    with collecting("measure") as problems:
        if published.pretrained is None:
            request.check(problems)
            for option, value in published.flags().items():
                problems.add(option, value, "only with --pretrained; leave it out")
        else:
            others = {key: one for key, one in request.flags().items() if key != "--compilation-cache"}
            published.check(measuring, others, problems)
        for option, value in {"--seed": measuring.seed, "--top": output.top}.items():
            if value < 0:
                problems.add(option, value, "at least 0")
        measuring.objects(problems)
        output.check(problems)
        if published.pretrained is None and (table := request.table(problems)) is not None:
            try:
                source = _source(request, table)
            except InputError as error:
                paths = {one.path for one in problems}
                problems.include(one for one in error.problems if one.path not in paths)
    from jaxsens.core.results.interrupted import MeasurementInterrupted

    try:
        with programs_kept(request.compilation_cache):
            if (folder := published.pretrained) is None:
                summary = _of_words(source, request, measuring, output)
            else:
                summary = _of_text(folder, published, measuring, output)
    except MeasurementInterrupted as stop:
        output.keep(stop.partial)
        return 128 + stop.signal
    # Save first: printing fails if the reader has closed the pipe.
    code = output.write(summary.result, summary.title)
    if output.json_output and not output.quiet:
        print(json.dumps(summary.values, indent=1), flush=True)
    elif not output.quiet:
        summary.print()
    return code


def _source(request: InputOptions, table: dict[str, Any]) -> ModelSource:
    """The model with random, constructed or trained weights."""
    from jaxsens.core.sweeps.single import model_source

    # With a config, only what the options say is theirs.
    names = (
        {"model": "--model"}
        if request.config is None
        else {f"model.{key}": ("--model", key) for key in table}
    )
    with flags_named({**names, "model.checkpoint": "CHECKPOINT"}):
        return model_source(request.config, request.variant, table)


def _of_words(
    source: ModelSource, request: InputOptions, measuring: MeasuringOptions, output: OutputOptions
) -> Summary:
    """Measures the model on words."""
    from jaxsens.core.sweeps.single import input_tokens, measured, summary_of_words

    with flags_named(MEASURED_BY):
        tokens = input_tokens(source, request.tokens, request.n, request.inputs, measuring.seed)
        model, arguments = source.build(tokens.shape[1], measuring.seed), measuring.arguments(output.quiet)
        result = measured(model, tokens, arguments, output.partial())
    return summary_of_words(result, source, output.top)


def _of_text(
    folder: Path, published: TextOptions, measuring: MeasuringOptions, output: OutputOptions
) -> Summary:
    """Measures a published model on a text."""
    from jaxsens.core.sweeps.single import measured, summary_of_text
    from jaxsens.pretrained.load import load_pretrained

    option = "--text" if published.text_file is None else "--text-file"
    with flags_named({"folder": "--pretrained", "text": option, "readout": "--readout", **MEASURED_BY}):
        text, arguments = published.read(), measuring.arguments(output.quiet)
        output_read = published.output_read(arguments.get("measure"))
        model = load_pretrained(folder, output=output_read, dtype=published.dtype or "float32")
        result = measured(model, text, published.place() | arguments, output.partial())
    return summary_of_text(result, model, text, output.top)
