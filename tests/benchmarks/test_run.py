"""Options, the order of events, and the whole command on tiny inputs."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import command, options, run
from benchmarks.agreement import Disagreement
from benchmarks.costs import Rates, cost
from benchmarks.methods import build
from benchmarks.options import REFERENCE, Case, Options, Plan
from benchmarks.worker import Ran, Worker, WorkerFailed
from jaxsens.core.base.errors import InputError

PLAN = Plan(Path("unused"), (8, 16), (1,), ("vmap", "difference"), 60.0, 2, 4, True)


class Here:
    """Stands in for a worker, in this process. `slow` takes long, `failing` fails when timed.

    Unless it is `measuring`, norms are made up, and all but the reference's rounded to float32.
    """

    measuring = False
    slow: str | None = None
    wrong: str | None = None
    failing: str | None = None
    log: list[tuple[str, int | None]] = []  # noqa: RUF012

    def __init__(self, case: Case) -> None:
        self.case, self.remark, self.method = case, "", build(case)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        pass

    def run(self, positions, timeout):
        norms = self.method.measure(positions) if self.measuring else self.made_up(positions)
        self.log.append((self.case.method, None if positions is None else len(positions)))
        if self.case.method == self.failing and self.log.count((self.case.method, None)) > 1:
            raise WorkerFailed("stopped after 240 s")
        factor = 2 if self.case.method == self.wrong else 1
        return Ran(1000.0 if self.case.method == self.slow else 0.5, norms * factor)

    def made_up(self, positions):
        norms = np.random.default_rng(self.case.n).uniform(0.5, 1, self.case.n - 1)
        norms = norms if self.case.method == REFERENCE else norms.astype(np.float32).astype(np.float64)
        return norms if positions is None else norms[positions]

    def begin_memory(self):
        pass

    def peak(self):
        return 3 * 2**20


@pytest.fixture
def here(monkeypatch):
    class Fresh(Here):
        log: list[tuple[str, int | None]] = []  # noqa: RUF012

    monkeypatch.setattr(run, "Worker", Fresh)
    return Fresh


def quiet(text: str) -> None:
    pass


@pytest.mark.slow
def test_methods_take_turns_and_rows_hold_medians_errors_and_limits(here):
    here.measuring = True
    first, second = list(run.measure_all(PLAN, Rates(1e9, 1e9), quiet))
    assert here.log[:7] == [("reference", None), *[("vmap", None), ("difference", None)] * 3]
    assert [row.method for row in second] == ["vmap", "difference"]
    for row in (*first, *second):
        assert row.seconds == 0.5
        assert row.repeats == 2
        assert row.peak_mib == 3
        assert row.checked_flips == row.flips == row.n - 1
        assert row.error is not None
        assert 0 < row.error < 1e-3
        assert row.distance == pytest.approx(0.5 / (row.limit_seconds or 0))


def test_what_would_exceed_the_limit_is_sampled_and_scaled(here):
    here.slow = "vmap"
    _, second = list(run.measure_all(PLAN, Rates(1e9, 1e9), quiet))
    vmap, difference = second
    assert vmap.measured_flips == 4
    assert vmap.seconds == pytest.approx(1000 * 15 / 4)
    assert vmap.note == "extrapolated from 4 flips"
    assert vmap.checked_flips == 4
    assert vmap.error is not None
    assert vmap.error < 1e-3
    assert difference.measured_flips == 15


def test_agreement_is_checked_first_and_a_wrong_method_is_named(here):
    run.check_agreement(PLAN, quiet)
    here.wrong = "difference"
    with pytest.raises(Disagreement, match="L = 1, n = 8, difference: 7 of 7 norms differ"):
        run.check_agreement(PLAN, quiet)


def test_a_rival_that_would_exceed_the_limit_is_left_out_and_says_so(here, monkeypatch):
    schedule = run.Schedule(PLAN)
    schedule.note(Case("torch", 1, 8), 10.0)
    assert schedule.expected(Case("torch", 1, 16)) == pytest.approx(80.0)
    assert schedule.expected(Case("torch", 2, 16)) is None
    plan = Plan(Path("unused"), (16,), (1,), ("torch",), 60.0, 2, 4, True)
    (row,) = run._measure_one(plan, schedule, 1, 16, Rates(1e9, 1e9), quiet)
    assert row.seconds is None
    assert row.note == "left out: about 80 s expected"


def test_every_faulty_option_is_named_at_once():
    with pytest.raises(InputError) as caught:
        options.plan(
            Options(Path("out"), lengths=(2,), layers=(0,), methods=("jax",), repeats=0, limit_seconds=-1)
        )
    for name in ("--lengths", "--layers", "--methods", "--repeats", "--limit-seconds"):
        assert name in str(caught.value)


def test_methods_whose_packages_are_missing_are_left_out_with_the_remedy(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "captum" else find(name))
    plan = options.plan(Options(Path("out"), methods=("vmap", "captum-1")))
    assert plan.methods == ("vmap",)
    assert "captum not installed; pip install" in plan.missing["captum-1"]


@pytest.mark.slow
def test_a_worker_reports_what_went_wrong_and_a_slow_one_is_stopped():
    with pytest.raises(WorkerFailed, match="no-such-method"), Worker(Case("captum-no-such-method", 1, 8)):
        pass
    with Worker(Case("vmap", 1, 64)) as worker, pytest.raises(WorkerFailed, match="stopped after 0 s"):
        worker.run(None, 0.0)


@pytest.mark.slow
def test_the_command_writes_table_plot_and_machine(tmp_path, capsys):
    line = "--lengths 8 16 --layers 1 --methods vmap difference --quick --repeats 2"
    assert command.main(["--out", str(tmp_path), *line.split()]) == 0
    with open(tmp_path / "benchmark.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["n"]) for row in rows] == [
        (method, n) for n in ("8", "16") for method in ("vmap", "difference")
    ]
    assert all(float(row["seconds"]) > 0 and float(row["error"]) < 1e-3 for row in rows)
    assert rows[2]["growth"]
    machine = json.loads((tmp_path / "machine.json").read_text("utf-8"))
    assert machine["operations_per_second"] > 1e8
    assert machine["versions"]["jax"]
    assert (tmp_path / "benchmark.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "benchmark.svg").read_text("utf-8")
    assert "difference" in capsys.readouterr().out


def test_the_command_refuses_bad_options_without_a_traceback(tmp_path, capsys):
    assert command.main(["--out", str(tmp_path), "--methods", "nonsense"]) == 2
    assert "--methods = 'nonsense'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_incremental_engine_is_left_out_of_one_layer_with_the_reason(here):
    assert here.log == []
    plan = Plan(Path("unused"), (8,), (1,), ("incremental",), 60.0, 1, 4, True)
    run.check_agreement(plan, lambda text: None)
    (rows,) = run.measure_all(plan, Rates(1e11, 1e10), lambda text: None)
    assert [(row.method, row.note) for row in rows] == [("incremental", "left out: needs two layers")]


def test_the_limit_of_each_method_counts_what_its_algorithm_needs():
    flips = {method: cost(Case(method, 6, 1024)).operations for method in ("torch", "vmap", "incremental")}
    assert 1.1 < flips["torch"] / flips["vmap"] < 6 / 5
    assert 6 / 5 < flips["torch"] / flips["incremental"] < 6 / 4
