"""`jaxsens corpus`: a published model on a file of texts, told by token, by position and by label."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from jaxsens.cli import shared
from jaxsens.cli.measure import MEASURED_BY, MeasuringOptions, PublishedOptions
from jaxsens.core.base import inputs
from jaxsens.core.base.errors import Problems, collecting
from jaxsens.core.base.files import check_ending, only_inside, write_bytes
from jaxsens.core.base.text import print_text
from jaxsens.core.measures import Measure


@dataclass(frozen=True)
class CorpusOptions(PublishedOptions):
    """A published model, a file of texts, and what is written.

    Attributes:
        texts: A file of texts: .txt, one a line; .csv or .tsv with the columns text and label; or .jsonl.
        save: Keep every flip in this folder, in a file for each length. The same command goes on from it.
        table: Write all rows to this .csv file.
        html: Write a page with the texts coloured by sensitivity.
        png: Write the tables as a picture.
        svg: Write the same as SVG.
        top: The number of tokens to print.
        quiet: Print only errors and warnings.
    """

    texts: Annotated[shared.File, shared.default("")] = None
    save: Annotated[shared.OptionalOut, shared.default("not written")] = None
    table: shared.NewFile = None
    html: shared.NewFile = None
    png: shared.NewFile = None
    svg: shared.NewFile = None
    top: shared.Number = 20
    quiet: shared.Flag = False

    def check(self, measure: Measure | None, problems: Problems) -> None:
        """Adds the errors that can be found without loading the model."""
        self.check_model(measure, problems)
        inputs.count("--top", self.top, problems)
        if self.texts is None:
            problems.add("--texts", None, "a file of texts")
        shared.check_there("--texts", self.texts, problems)
        if self.save is not None:
            shared.check_directory("--save", self.save, problems)
        for method in ("html", "png", "svg"):
            path = getattr(self, method)
            if path is not None:
                check_ending(f"to_{method}", path, problems, f"--{method}")
                shared.check_output(f"--{method}", path, problems)
        if self.table is not None and self.table.suffix != ".csv":
            problems.add("--table", str(self.table), "a file that ends with .csv")
        shared.check_output("--table", self.table, problems)


def corpus(
    options: Annotated[CorpusOptions, tyro.conf.arg(name="")] = CorpusOptions(),  # noqa: B008, RUF100 - frozen
    measuring: tyro.conf.OmitArgPrefixes[MeasuringOptions] = MeasuringOptions(),  # noqa: B008, RUF100 - frozen
) -> int:
    """Measure a published model on a file of texts.

    Prints the result by token, by position and by label.

    For example: jaxsens corpus --pretrained all-MiniLM-L6-v2 --texts texts.txt --save flips

    Args:
        options: The model, the texts, and what is written.
        measuring: How flips are measured.
    """
    from jaxsens.pretrained import corpus as single
    from jaxsens.pretrained.corpus import read_texts

    texts, own = list[Any](), Problems()
    arguments = measuring.objects(own)
    with collecting("corpus") as problems:
        options.check(arguments.get("measure"), problems)
        problems.include(own)
        if not problems and options.texts is not None:
            texts = read_texts("--texts", options.texts, problems)
    with shared.flags_named({"folder": "--pretrained", "readout": "--readout", **MEASURED_BY}):
        model, place = options.load(arguments.get("measure"))
        with collecting("corpus") as problems:
            words = single.encoded_texts(model, texts, problems)
        arguments |= place
        with collecting("corpus") as problems:
            single.check_flips(model, texts, words, arguments, problems)
        save, console = options.save, Console(stderr=True, quiet=options.quiet)

        def told(done: int, of: int) -> None:
            print_text(console, f"{done} of {of} texts")

        try:
            with nullcontext() if save is None else only_inside(save):
                results = single.measured_corpus(model, texts, words, arguments, save, told)
        except KeyboardInterrupt:
            if save is not None:
                raise
            print("jaxsens: stopped; nothing was kept: --save DIR keeps what is measured", file=sys.stderr)
            return 128 + signal.SIGINT
    labels = single.labels_of(model, texts, results)
    return _write(options, results, single.tables_of(results, labels), f"{model.name}: {len(texts)} texts")


def _write(options: CorpusOptions, results: Any, tables: Any, title: str) -> int:
    """Writes the files asked for, and prints the tables. Returns the exit code."""
    from jaxsens.core.results.picture import page
    from jaxsens.pretrained.corpus import LEAST, common, corpus_picture, printed, view_of, write_table

    code, often = 0, [common(table, LEAST) if table[0].by == "token" else table for table in tables]
    measure = results[0].measure
    forms: dict[Literal["png", "svg"], Path | None] = {"png": options.png, "svg": options.svg}
    for form, option in forms.items():
        if option is not None:
            picture = corpus_picture(often, title, measure.unit, form)
            code = shared.write_output(f"--{form}", option, partial(write_bytes, option, picture)) or code
    if (path := options.table) is not None:
        code = shared.write_output("--table", path, partial(write_table, tables, path)) or code
    if options.html is not None:
        shown = page(view_of(results), None, title).encode()
        code = shared.write_output("--html", options.html, partial(write_bytes, options.html, shown)) or code
    if not options.quiet:
        console = Console()
        print_text(console, f"{title}; {sum(map(len, results))} flips, {measure.kind}")
        for table in tables:
            console.print(printed(table, options.top))
    return code
