"""The result of a measurement: its record, with statistics, tables and pictures; and what an interrupted one leaves."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from pydantic import TypeAdapter

from jaxsens.core.base.errors import InputError, Problems, collecting
from jaxsens.core.base.files import check_ending, write_bytes
from jaxsens.core.base.inputs import UNPAIRED, checked_number, choice, is_real, is_unicode
from jaxsens.core.base.sealed import decoded
from jaxsens.core.base.strict import typed_arguments
from jaxsens.core.engines.request import Request
from jaxsens.core.models.adapters import Model, as_inputs
from jaxsens.core.results.measured import COLUMNS, MeasuredFlips, as_text, ceiling, strings_of
from jaxsens.core.results.picture import By, ResultView, page, view_of
from jaxsens.core.results.result_file import read_columns, write_columns
from jaxsens.core.results.statistics import (
    Accuracy,
    MeasuredSample,
    accuracy_of,
    decision_ends,
    mean_ends,
    stratified_mean,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


MOST_CELLS = 10**7
"""The largest table that `FlipSensitivity.profile` returns: 80 MB in float64."""


class Flip(NamedTuple):
    """One flip and its sensitivity."""

    input: int
    position: int
    symbol: int
    norm: float


class Interval(NamedTuple):
    """A confidence interval of sensitivities; from 0 to infinity where nothing can be said."""

    low: float
    high: float

    def text(self, digits: int = 4) -> str:
        """Returns what it says of a mean, at 95 % confidence, in words."""
        low, high = (f"{end:.{digits}g}" for end in self)
        if self.low == self.high:
            return f"exactly {low}"
        if math.isfinite(self.high):
            return f"95% interval [{low}, {high}]"
        if self.low > 0:
            return f"at least {low} with 95% confidence, and no upper end: flips not measured may be larger"
        return "no interval: too little was measured at random"


@dataclass(frozen=True, eq=False)
class FlipSensitivity(MeasuredFlips):
    """||y_r(x) - y_r(x')||, or what else was measured, for flips x' of the inputs x.

    Attributes:
        values: what was measured of each flip: a number of at least 0, or for a function f a signed one. Of an
            estimated result: exact where flips were measured (`exact`), estimates elsewhere.
        resolution: for each flip a bound of the rounding in its value, below which the measurement knows nothing; 0 for
            estimates, whose error is another.
        flips: the flips, one row each, sorted by input, position, symbol; and how many each input has.
        tokens: the inputs, (batch, n).
        asked: what was asked, which `remaining` and `joined` compare.
        engine: the engine that ran, with the reason.
        run: the dtype of the arithmetic, and versions.
        estimated: the estimates, and which flips were measured besides; None if all flips were measured.
        names: how to write the symbols that are in `tokens` or were inserted, if the model knows strings; otherwise
            None.
        pieces: for each input what stands in its text for each position, with the white space before it; None if the
            model encodes no text.

    `norms` are the sizes of `values`; `inputs`, `positions` and `symbols` are the columns of `flips`.

    `remaining` and `joined` complete the result of an interrupted call.

    Statistics are those of `norms`, so of sizes where there are signs. A result without flips, as an interruption may
    leave, has mean, maximum and quantiles NaN.

    Statistics of an estimated result combine estimates and exact norms (`jaxsens.core.results.statistics`): the
    mean is corrected by the random sample of measured flips, and `mean_interval` says what these prove of it; the
    maximum is that of the measured flips; `accuracy` compares estimates with exact values.
    """

    def at_most(self, statistic: Literal["max", "mean"] | float) -> float | None:
        """Returns what a statistic is at most, if rounding may move it by over 1 %; None if it is resolved.

        `max`, `mean` and `quantile` are those of the values as measured, which may be nothing but rounding. The rule
        is that of `jaxsens.core.results.measured`.

        Args:
            statistic: "max", "mean", or a number q from 0 to 1 for the q-quantile.

        Raises:
            InputError: for another statistic.
        """
        if isinstance(statistic, str):
            if statistic not in ("max", "mean"):
                raise InputError.of(
                    "statistic", statistic, '"max", "mean", or a number from 0 to 1 for a quantile'
                )
            return ceiling(self, attrgetter(statistic))
        checked_number("at_most", least=0, most=1, statistic=statistic)
        return ceiling(self, lambda one: one.quantile(statistic))

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """How far the estimates are from exact values, judged by the flips measured at random. None if all were
        measured and there are no estimates."""
        if self.estimated is None:
            return None
        return accuracy_of(self.estimated, self.norms)

    @cached_property
    def max(self) -> float:
        """The largest measured sensitivity; NaN if none was measured.

        For a sample, or an estimated or partial result, it is a lower bound on the maximum over all flips. Of an
        estimated result, `accuracy.exceeding` bounds how many flips exceed it.
        """
        return float(np.max(self.norms[self.exact])) if self.exact.any() else math.nan

    @cached_property
    def mean(self) -> float:
        """The mean sensitivity over flips and inputs, summed in float64. For a partial result, the mean over its own
        flips, which are not a random sample."""
        if not len(self):
            return math.nan
        if self.estimated is not None:
            return stratified_mean(self.estimated, self.norms)
        return float(np.mean(self.norms, dtype=np.float64))

    @property
    def sensitive_flips(self) -> Float[np.ndarray, " batch"]:
        """The Boolean sensitivity of each input: the number of its flips that change the decision.

        Of a random sample of the flips it is an estimate, the share among those drawn times the number of the input's
        flips, and NaN for an input of which none was drawn.

        Raises:
            InputError: for a result of another measure than `Decision`, and for a partial one.
        """
        self._check_decisions("sensitive_flips")
        batch = len(self.tokens)
        changing = np.bincount(self.inputs, weights=self.norms, minlength=batch)
        if self.exhaustive:
            return changing
        drawn = np.bincount(self.inputs, minlength=batch).astype(float)
        flips = self.flips.populations.astype(float)
        return flips * np.divide(changing, drawn, out=np.full(batch, np.nan), where=drawn > 0)

    @property
    def average_sensitivity(self) -> float:
        """The mean over inputs of `sensitive_flips`, unbiased for a random sample of the flips too.

        Over inputs drawn uniformly, with all positions flipped, it estimates the average sensitivity of a Boolean
        function, as Bhattamishra et al. (2023) and Hahn and Rofin (2024) report it. `mean` is the share of flips that
        change the decision.

        Raises:
            InputError: as `sensitive_flips` does.
        """
        self._check_decisions("average_sensitivity")
        return self.mean * self.population / len(self.tokens)

    @property
    def average_sensitivity_per_position(self) -> float:
        """`average_sensitivity` divided by the number of positions that are flipped (its mean over inputs), unbiased
        for a random sample of the flips too.

        For two symbols it is the share of flips that change the decision, from 0 to 1 (parity), which Bhattamishra et
        al. (2023) compare between lengths. With more symbols a position has several flips, and it may exceed 1.

        Raises:
            InputError: as `sensitive_flips` does; for flips of groups; and for a sample of flips other than to every
                symbol of an alphabet.
        """
        name = "average_sensitivity_per_position"
        self._check_decisions(name)
        flips = self.asked.flips
        if flips.groups is not None:
            raise InputError(f"{name}: flips of groups are not flips of positions; use to_pandas()")
        if self.exhaustive:
            flipped = len(np.unique(self.inputs.astype(np.int64) * self.n + self.positions))
        elif flips.of_alphabet:
            # Flips to an alphabet are made at symbols of that alphabet only, and insert each of the others.
            flipped = self.population // (len(self.alphabet) - 1)
        else:
            raise InputError(
                f"{name}: a sample of flips other than to every symbol of an alphabet does not say how many positions "
                "have flips; measure all flips"
            )
        return self.mean * self.population / flipped

    @property
    def sensitivity_distribution(self) -> Float[np.ndarray, " counts"]:
        """The share of inputs x with s(f, x) = 0, 1, 2, ... flips that change the decision, up to the most flips that
        an input has. Over all inputs it is the sensitivity profile of a Boolean function (Kover et al. 2026).

        Raises:
            InputError: as `sensitive_flips` does, and for a random sample of the flips.
        """
        self._check_decisions("sensitivity_distribution", whole=True)
        most = int(np.bincount(self.inputs, minlength=len(self.tokens)).max())
        return np.bincount(self.sensitive_flips.astype(np.int64), minlength=most + 1) / len(self.tokens)

    @property
    def influences(self) -> Float[np.ndarray, " n"]:
        """For each position the mean, over inputs, of the number of its flips that change the decision; NaN for one
        that is not flipped. For two symbols it is the share of inputs at which the position matters: its influence.

        Those of the flipped positions add up to `average_sensitivity`.

        Raises:
            InputError: as `sensitivity_distribution` does, and for flips of groups.
        """
        self._check_decisions("influences", whole=True)
        if self.asked.flips.groups is not None:
            raise InputError("influences: flips of groups are not flips of positions; use to_pandas()")
        flipped = np.bincount(self.positions, minlength=self.n) > 0
        changing = np.bincount(self.positions, weights=self.norms, minlength=self.n)
        return np.where(flipped, changing / len(self.tokens), np.nan)

    def _check_decisions(self, name: str, *, whole: bool = False) -> None:
        """Rejects a result of another norm, a partial one, and with `whole` a random sample of the flips."""
        if not self.measure.indicator:
            raise InputError(
                f'{name}: this result has measure = "{self.measure.kind}"; give measure="decision"'
            )
        if not self.complete:
            raise InputError(
                f"{name}: {len(self)} flips of an interrupted measurement are not a random sample; complete it: "
                "result.joined(flip_sensitivity(..., flips=result.remaining))"
            )
        if whole and not self.exhaustive:
            raise InputError(
                f"{name}: it needs all flips, and {len(self)} of {self.population} were drawn; measure all of them"
            )

    def quantile(self, q: float) -> float:
        """Returns the q-quantile of the sensitivities, 0 <= q <= 1, linearly interpolated. That of an estimated result
        is taken from `norms`, which are estimates for the most part."""
        checked_number("quantile", least=0, most=1, q=q)
        return float(np.quantile(self.norms.astype(np.float64), q)) if len(self) else math.nan

    @cached_property
    def argmax(self) -> Flip:
        """The first flip with the largest measured sensitivity.

        Raises:
            InputError: for a result without measured flips.
        """
        if not self.exact.any():
            raise InputError(
                "argmax: no flip was measured; complete the result: "
                "result.joined(flip_sensitivity(..., flips=result.remaining))"
            )
        k = int(np.argmax(np.where(self.exact, self.norms, -1)))
        return Flip(int(self.inputs[k]), int(self.positions[k]), int(self.symbols[k]), float(self.norms[k]))

    def mean_interval(self, confidence: float = 0.95, largest: float | None = None) -> Interval:
        """Returns a confidence interval for the mean over all flips; it has zero width if all were measured.

        It holds for every distribution of the sensitivities, however skewed, in samples of any size
        (`jaxsens.core.results.statistics`). That of decisions is exact: it excludes the numbers of flips with
        which the hypergeometric distribution gives what was drawn too rarely. An upper end needs a value that no flip
        exceeds: 2 for `Cosine`, and `largest` for others. Without one the upper end is infinite, since flips that were
        not drawn may be arbitrarily larger, and the lower end alone has the confidence. Of an estimated result only the
        measured flips enter. The interval is from 0 to infinity for a partial result, whose flips are not a random
        sample, and if none was measured at random: then nothing can be said.

        Args:
            confidence: the probability, over draws, that the interval holds the mean.
            largest: a number that no flip exceeds, known beforehand, such as a certified bound.

        Raises:
            InputError: naming each unusable argument, and for a measured flip above `largest`.
        """
        checked_number("mean_interval", least=0, most=1, confidence=confidence)
        if largest is not None and not (is_real(largest) and float(largest) >= 0):
            raise InputError.of("largest", largest, "a number of at least 0 that no flip exceeds, or None")
        if largest is not None and self.max > float(largest):
            raise InputError.of(
                "largest", largest, f"a measured flip has {self.max:.6g}; give a number that none exceeds"
            )
        largest = min(self.measure.largest, math.inf if largest is None else float(largest))
        if self.exhaustive and self.exact.all():
            return Interval(self.mean, self.mean)
        if not self.complete or not self.exact.any():
            return Interval(0.0, largest)
        ends = decision_ends if self.measure.indicator else mean_ends
        measured = MeasuredSample.of(self.norms, self.estimated, self.population)
        low, high = ends(measured, confidence, largest)
        return Interval(min(low, self.mean), max(high, self.mean))

    def profile(self) -> Float[np.ndarray, "*batch n alphabet"]:
        """Returns the sensitivities by position and symbol (columns follow `alphabet`), NaN where nothing was flipped.
        The shape is (n, alphabet) for one input, (batch, n, alphabet) for several.

        Raises:
            InputError: for a table of more than 1e7 cells, and for flips of groups, which no position and symbol tells
                apart.
        """
        batch, n = self.tokens.shape
        if self.asked.flips.groups is not None:
            raise InputError("profile: these flips replace several symbols at once; use to_pandas()")
        if (cells := batch * n * len(self.alphabet)) > MOST_CELLS:
            raise InputError(
                f"profile: a table of {cells} cells, of which {len(self)} are measured; beyond {MOST_CELLS}, use "
                "to_pandas(), which has a row for each flip"
            )
        table = np.full((batch, n, len(self.alphabet)), np.nan, self.norms.dtype)
        table[self.inputs, self.positions, np.searchsorted(self.alphabet, self.symbols)] = self.norms
        return table[0] if batch == 1 else table

    def to_pandas(self) -> pd.DataFrame:
        """Returns a table with the columns input, position, symbol, norm, resolution; value if it has
        a sign; and for an estimated result estimate, and exact: whether the norm was measured. If the
        model knows strings, the columns token, after position, and replacement, after symbol, say what stood there and
        what was inserted. Flips of groups have the columns positions and symbols as well: tuples of all that a flip
        replaces and inserts, of which token and replacement have the strings, with blanks between them."""
        import pandas as pd

        columns: dict[str, Any] = {"input": self.inputs, "position": self.positions, "symbol": self.symbols}
        columns |= {"norm": self.norms, "resolution": self.resolution}
        columns |= {"value": self.values} if self.measure.signed else {}
        if self.names is not None:
            token, replacement = self.tokens[self.inputs, self.positions], self.symbols
            others = {name: columns.pop(name) for name in list(columns)[2:]}
            columns |= {"token": strings_of(self, token), "symbol": others.pop("symbol")}
            columns |= {"replacement": strings_of(self, replacement), **others}
        if self.estimated is not None:
            columns |= {"estimate": self.estimated.estimates, "exact": self.exact}
        if self.asked.flips.groups is not None:
            both = self.flips.groups()
            if self.names is not None:
                rows = zip(self.inputs, both["positions"], strict=True)
                columns["token"] = [
                    " ".join(strings_of(self, self.tokens[k, list(group)])) for k, group in rows
                ]
                columns["replacement"] = [
                    " ".join(strings_of(self, np.array(one))) for one in both["symbols"]
                ]
            columns |= both
        return pd.DataFrame(columns)

    def view(self) -> ResultView:
        """Returns the result by position, with the strings of its symbols, as pictures show it."""
        return view_of(self)

    def plot(self, axes: Any = None) -> list[Axes]:
        """Draws the largest and the mean sensitivity of every position, with tokens below the axis if there is room.

        Of a function's signed changes it draws the one of largest size, and the range. Hollow markers are estimates,
        hollow triangles that point down (a dotted range of signed changes) what a position's flips change at most,
        where the arithmetic does not resolve them.
        New axes are made by `matplotlib.pyplot`, so that notebooks and `pyplot.show()` show them.

        Args:
            axes: matplotlib Axes to draw in, one for each input; new ones by default.

        Returns:
            The axes, one for each input, from top to bottom; `axes[0].figure` is the figure.

        Raises:
            InputError: for unusable axes, or more than 12 inputs without axes.
        """
        from jaxsens.core.results.plot import draw_profile

        return draw_profile(self.view(), axes)

    @typed_arguments
    def to_html(
        self, path: str | os.PathLike[str], *, by: By | None = None, title: str = "Sensitivity by token"
    ) -> None:
        """Writes a page with the text, its tokens coloured by sensitivity, and the most sensitive of them, atomically.

        It needs no other file, no network and no script. The bar beneath a token says the same as its colour, for print
        in black and white; the values appear on hover. It shows 20,000 positions at most, and says so.

        Args:
            path: of the file, which ends in .html or .htm.
            by: what colours show of the flips of a position: the "largest" sensitivity, or the "mean". By default the
                largest, and for decisions the mean: the share of flips that change the decision.
            title: of the page.

        Raises:
            InputError: for another `by`, title, or ending of the path.
        """
        self._draw("to_html", path, by, title, lambda: page(self.view(), by, title).encode())

    @typed_arguments
    def to_png(
        self, path: str | os.PathLike[str], *, by: By | None = None, title: str = "Sensitivity by token"
    ) -> None:
        """Writes the coloured text of `to_html` as a picture, drawn by Matplotlib with 200 dots per inch, atomically.

        It shows 3,000 positions at most, and says so. `by`, `title` and errors are as for `to_html`; the path ends in
        .png. An empty title is left out.
        """
        from jaxsens.core.results.plot import picture_bytes

        self._draw("to_png", path, by, title, lambda: picture_bytes(self.view(), by, title, "png"))

    @typed_arguments
    def to_svg(
        self, path: str | os.PathLike[str], *, by: By | None = None, title: str = "Sensitivity by token"
    ) -> None:
        """Writes the picture of `to_png` as SVG, atomically; the path ends in .svg."""
        from jaxsens.core.results.plot import picture_bytes

        self._draw("to_svg", path, by, title, lambda: picture_bytes(self.view(), by, title, "svg"))

    def _draw(
        self, method: str, path: str | os.PathLike[str], by: Any, title: Any, made: Callable[[], bytes]
    ) -> None:
        with collecting(method) as problems:
            check_ending(method, path, problems)
            choice("by", by, ("largest", "mean", None), problems)
            if not is_unicode(title):
                problems.add("title", title, UNPAIRED)
        write_bytes(path, made())

    def _repr_html_(self) -> str:
        """What a notebook shows: as `to_html`, with 1500 positions at most."""
        return page(self.view())

    @typed_arguments
    def save(self, path: str | os.PathLike[str], **metadata: Any) -> None:
        """Writes one Parquet file, atomically: one row per flip, and `description()` in the file's metadata.

        A checksum covers everything; `load_result` verifies it. Further keyword arguments (JSON values) are stored in
        the metadata next to the description.

        Raises:
            InputError: for a path that does not end in .parquet, metadata that JSON cannot hold, or metadata under the
                name "result" or "checksum".
        """
        with collecting("save") as problems:
            check_ending("save", path, problems)
        save_with_metadata(self, path, metadata)

    def __repr__(self) -> str:
        part = f"{len(self)} of {self.population} flips, {'sampled' if self.complete else 'interrupted'}"
        what = f"{len(self)} flips" if self.exhaustive else part
        kind = f"FlipSensitivity(n={self.n}, inputs={len(self.tokens)}, {what}, {self.measure.kind}"
        mean = as_text(self.mean, self.at_most("mean"))
        largest = as_text(self.max, self.at_most("max"))
        measured = int(self.exact.sum())
        largest += f" at position {self.argmax.position}" if measured else ""
        if self.accuracy is None:
            blurred = f"{self.unresolved} flips not resolved, " if self.unresolved else ""
            return f"{kind}: mean={mean}, max={largest}, {blurred}engine={self.engine.name})"
        return (
            f"{kind}, engine={self.engine.name})\n"
            f"  mean={mean}, {self.mean_interval().text()}; largest measured={largest}\n"
            f"  {self.accuracy}\n"
            f"  {measured} flips measured, {len(self) - measured} only estimated; {self.accuracy.exceeding_told}"
        )


class MeasurementInterrupted(KeyboardInterrupt):
    """Raised on Ctrl-C during `flip_sensitivity`. `partial` is the result on the finished flips, which are not a random
    sample; `partial.remaining` are the others. Of a list of texts, `finished` are the results before that one. `signal`
    is the number of the signal."""

    def __init__(
        self, partial: FlipSensitivity, number: int = signal.SIGINT, finished: Sequence[FlipSensitivity] = ()
    ) -> None:
        super().__init__(f"interrupted after {len(partial)} of {partial.requested} flips; see .partial")
        self.partial, self.signal, self.finished = partial, number, [*finished]


def check_texts(texts: Sequence[Any], model: Model, request: Request, problems: Problems) -> None:
    """Rejects texts, given as ids, of which one cannot be measured, before the others are."""
    request = request.read(problems)
    for k, ids in enumerate(texts if not problems else ()):
        own = Problems()
        _, selection, *_ = request.validated(model, as_inputs(model, ids, own, one=True), own)
        if not own:
            try:
                selection.flips()
            except InputError as error:
                own.include(error.problems)
        problems.include((one.renamed({"tokens": ()}) for one in own), ("tokens", k))
    problems.raise_if_any()


def each_text(measure: Callable[[str], FlipSensitivity], texts: Sequence[str]) -> list[FlipSensitivity]:
    """Returns the results of texts, one after another.

    Raises:
        MeasurementInterrupted: with what is finished. Between two texts, the last result stands for the partial one.
    """
    results: list[FlipSensitivity] = []
    try:
        for text in texts:
            results.append(measure(text))
    except MeasurementInterrupted as stop:
        raise MeasurementInterrupted(stop.partial, stop.signal, results) from None
    except KeyboardInterrupt as stop:
        if not results:
            raise
        raise MeasurementInterrupted(
            results[-1], getattr(stop, "signal", signal.SIGINT), results[:-1]
        ) from None
    return results


@typed_arguments
def load_result(path: str | os.PathLike[str]) -> FlipSensitivity:
    """Reads a result written by `FlipSensitivity.save`, and verifies its checksum.

    Raises:
        InputError: if the file is missing, damaged, or not a result.

    >>> result = load_result("result.parquet")  # doctest: +SKIP
    """
    return load_with_metadata(path)[0]


def save_with_metadata(
    result: FlipSensitivity, path: str | os.PathLike[str], metadata: Mapping[str, Any], **further: int
) -> None:
    """Does what `FlipSensitivity.save` does. The seed of a point is a column, for who reads many files as one."""
    columns = dict[str, np.ndarray]()
    for name, place in COLUMNS.items():
        held: Any = reduce(lambda part, field: getattr(part, field, None), place.split("."), result)
        if held is not None:  # rows of one number are stored as numbers, rather than as lists of one
            columns[name] = held[:, 0] if held.ndim == 2 and held.shape[1] == 1 else held
    columns |= {name: np.full(len(result), value) for name, value in further.items()}
    write_columns(path, columns, result.description(), metadata)


def load_with_metadata(path: str | os.PathLike[str]) -> tuple[FlipSensitivity, dict[str, Any]]:
    """Returns a saved result and its further metadata. Raises as `load_result` does."""
    names = (*COLUMNS,)
    columns, fields, metadata = read_columns(path, names[:5], (*names[5:], "seed"))
    try:
        table = decoded(fields)
        for name in COLUMNS.keys() & columns.keys():
            (*above, last), column = COLUMNS[name].split("."), columns[name]
            rows = column.ndim == 1 and name in ("position", "symbol")
            (table[above[0]] if above else table)[last] = column[:, None] if rows else column
        return _reader().validate_python(table), metadata
    except (KeyError, TypeError, ValueError) as error:
        raise InputError.of(
            "path", str(path), f"not what this version of jaxsens writes ({error!r}); measure it again"
        ) from error


@cache
def _reader() -> TypeAdapter[FlipSensitivity]:
    """Returns what makes a result of a table. To build it takes longer than to read a small result."""
    return TypeAdapter(FlipSensitivity)
