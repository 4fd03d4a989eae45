"""What `jaxsens sweep` is asked for, whether one process measures or a job of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from jaxsens.cli.shared import CacheFolder, Config, Flag, Only, Out, Text, default, print_text
from jaxsens.core.base import stopping
from jaxsens.core.base.files import only_inside

if TYPE_CHECKING:
    from jaxsens.core.sweeps.points import Point
    from jaxsens.core.sweeps.sweep import Sweep
    from jaxsens.core.sweeps.tables import SweepTable


@dataclass(frozen=True)
class SweepOptions:
    """What is measured, and where it is kept.

    Attributes:
        config: A TOML file; see configs/.
        out: The output directory. To extend a sweep, reuse its directory with a config that adds lengths, seeds,
            variants or statistics.
        only: Measure only these points: variant=NAME, n=LENGTH or seed=SEED; separate values by commas; repeatable.
        shard: Measure part K of M of the points, for job arrays. Parts count from 0: 0/16 to 15/16. The last part to
            finish writes the report.
        list_points: List the points and bounds, with their state, and exit.
        allow_code: Import and call the functions that the config names, as [model] python = "module:make" does.
        quiet: Print only failures and warnings.
    """

    config: Config
    out: Out
    only: Only = ()
    shard: Annotated[Text, default("all", "K/M")] = None
    list_points: Annotated[Flag, tyro.conf.arg(name="list", help_behavior_hint="")] = False
    allow_code: Flag = False
    compilation_cache: CacheFolder = None
    quiet: Flag = False

    def load(self) -> tuple[Sweep, Sequence[Point]]:
        """Returns the sweep of the config, and the points that are chosen of it."""
        from jaxsens.core.sweeps.config import load_sweep_config
        from jaxsens.core.sweeps.points import select

        stopping.check()  # Imports take seconds.
        loaded = load_sweep_config(self.config, self.allow_code)
        return loaded, select(loaded.points, self.only, self.shard)


def time_text(points: Sequence[Point], tables: Iterable[SweepTable]) -> str:
    """Returns in words how long points will take on this machine, with what is stored of them for these tables."""
    from jaxsens.core.base.text import duration
    from jaxsens.core.sweeps.expected import ExpectedPoints, expected_points, expected_seconds

    groups = [one for one in expected_points(points) if isinstance(one, ExpectedPoints)]
    seconds, compiling = expected_seconds(groups, tables)
    return f"the missing points take about {duration(seconds)} here, {duration(compiling)} of it to compile, once"


def report_all(directory: Path, quiet: bool) -> None:
    """Writes the tables and the report of all that a sweep directory holds."""
    from jaxsens.core.report.data import load_sweep
    from jaxsens.core.report.page import summary_table
    from jaxsens.core.report.report import write_report
    from jaxsens.core.sweeps.sweep import write_points_csv, write_results_csv

    data = load_sweep(directory)
    with only_inside(directory):
        write_points_csv(directory, data.metadata, data.plan)
        for name, table in data.plan.sweep_tables.items():
            write_results_csv(directory, data.results[name], name, table)
    page, fits = write_report(data, directory)
    console = Console(quiet=quiet)
    console.print(summary_table(fits))
    print_text(console, f"{page}")
