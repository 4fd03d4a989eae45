"""A sweep does what is missing, survives what goes wrong, and ends with the same data every way.

Also with two real processes at once; `tools.shard_stress` kills some, too.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jaxsens import InputError, Placement, Substitute, Vmap, load_sweep
from jaxsens.core.base.sealed import write_sealed
from jaxsens.core.measures import L1
from jaxsens.core.sweeps import points as sweep_points
from jaxsens.core.sweeps import sweep as sweeps
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.sweep import PointsJob, read_plan, read_points, run_sweep
from tests.core.sweeps.tiny import TINY, fake_flip_sensitivity, measured_by, printed, quiet, tiny_sweep
from tests.refusals import refused


@pytest.fixture
def meanwhile(faked, monkeypatch):
    """Has something happen in the first measurement."""
    original = sweep_points.flip_sensitivity

    def happens(action):
        def first(model, tokens, **options):
            monkeypatch.setattr(sweep_points, "flip_sensitivity", original)
            action()
            return original(model, tokens, **options)

        monkeypatch.setattr(sweep_points, "flip_sensitivity", first)

    return happens


def run(sweep, folder, **selection):
    console = quiet()
    return run_sweep(sweep, folder, select(sweep.points, **selection), console), printed(console)


def csv(folder):
    return (folder / "points.csv").read_bytes()


def test_a_sweep_writes_its_plan_its_points_and_points_csv(faked, tmp_path):
    sweep = tiny_sweep()
    outcome, log = run(sweep, tmp_path)
    assert (outcome.computed, outcome.finished, outcome.planned) == (8, 8, 8)
    assert outcome.exit_code == 0
    assert faked == [4] * 4 + [6] * 4
    assert read_plan(tmp_path) == sweep.plan
    assert (tmp_path / "sweep.toml").read_text() == read_plan(tmp_path).config == TINY
    lines = csv(tmp_path).decode().splitlines()
    assert lines[0] == "variant,n,seed,inputs,flips,unresolved,mean,max,q90,mean_is,max_is,q90_is"
    assert [line.split(",")[:5] for line in lines[1:]] == [
        [variant, n, seed, "1", str(int(n) - 1)]
        for variant in ("softmax", "leftmost-hard")
        for n in ("4", "6")
        for seed in ("0", "1")
    ]
    assert not list(tmp_path.rglob(".*"))
    assert "8/8" in log


def test_tables_read_back_are_those_written_and_another_statistic_is_computed_without_measuring(
    faked, tmp_path
):
    run(tiny_sweep(), tmp_path)
    table = load_sweep(tmp_path).points
    assert table.to_csv(index=False).encode() == csv(tmp_path)
    found = read_points(tmp_path, read_plan(tmp_path))
    flips = {(point.variant, point.n, point.seed): flips.to_pandas() for point, flips in found}
    assert list(flips) == list(zip(table["variant"], table["n"], table["seed"], strict=True))
    assert [frame["norm"].max() for frame in flips.values()] == list(table["max"])
    run(tiny_sweep(), tmp_path)
    outcome, _ = run(tiny_sweep('["mean", "max", "q90"]', '["min", "mean"]'), tmp_path)
    assert outcome.computed == 0
    assert (
        csv(tmp_path)
        .decode()
        .startswith("variant,n,seed,inputs,flips,unresolved,min,mean,min_is,mean_is\nsoftmax,4,0,1,3,0,")
    )


def test_parts_of_a_sweep_add_up_to_the_whole(faked, tmp_path):
    sweep = tiny_sweep()
    run(sweep, tmp_path / "whole")
    for shard in ("0/3", "1/3", "2/3"):
        run(sweep, tmp_path / "shards", shard=shard)
    for variant in ("leftmost-hard", "softmax"):
        run(sweep, tmp_path / "variants", only=[f"variant={variant}"])
    assert csv(tmp_path / "shards") == csv(tmp_path / "variants") == csv(tmp_path / "whole")


def test_a_damaged_file_is_reported_and_measured_again(faked, tmp_path):
    sweep = tiny_sweep()
    run(sweep, tmp_path)
    before = csv(tmp_path)
    path = sweep.points[5].path(tmp_path)
    data = bytearray(path.read_bytes())
    data[60] ^= 4
    path.write_bytes(data)
    assert PointsJob(sweep, tmp_path).state(sweep.points[5]) == "damaged"
    refused("", load_sweep, tmp_path)
    outcome, log = run(sweep, tmp_path)
    assert outcome.computed == 1
    assert "damaged, computed again: leftmost-hard n=4 seed=1" in log
    assert csv(tmp_path) == before
    assert PointsJob(sweep, tmp_path).state(sweep.points[5]) == "done"


def test_a_point_that_fails_does_not_stop_the_others(monkeypatch, tmp_path):
    def failing(model, tokens, **options):
        if tokens.shape[1] == 6 and "Leftmost" in str(model.config.weighting):
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating 3 GiB")
        return fake_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, failing)
    sweep = tiny_sweep()
    outcome, log = run(sweep, tmp_path)
    assert outcome.exit_code == 1
    assert [str(failure.item) for failure in outcome.failures] == [
        "leftmost-hard n=6 seed=0",
        "leftmost-hard n=6 seed=1",
    ]
    message = outcome.failures[0].message
    assert "\n" not in message
    assert "smaller memory_budget or batch_size" in message
    assert "failed: leftmost-hard n=6 seed=0" in log
    assert outcome.finished == len(load_sweep(tmp_path).points) == 6
    assert PointsJob(sweep, tmp_path).state(sweep.points[6]) == "missing"


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_what_was_finished_and_the_next_run_does_the_rest(
    monkeypatch, tmp_path, number, code
):
    count = 0

    def stopping(model, tokens, **options):
        nonlocal count
        count += 1
        if count == 4:
            os.kill(os.getpid(), number)
        return fake_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, stopping)
    sweep = tiny_sweep()
    handler = signal.getsignal(signal.SIGTERM)
    outcome, _ = run(sweep, tmp_path / "stopped")
    assert (outcome.stopped_by, outcome.exit_code) == (number, code)
    assert outcome.finished == 4  # The one it came in was measured to its end.
    assert signal.getsignal(signal.SIGTERM) is handler
    assert csv(tmp_path / "stopped").count(b"\n") == 5
    assert not list((tmp_path / "stopped").rglob(".*"))
    outcome, _ = run(sweep, tmp_path / "stopped")
    assert (outcome.computed, outcome.finished) == (4, 8)
    run(sweep, tmp_path / "whole")
    assert csv(tmp_path / "stopped") == csv(tmp_path / "whole")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0, 3])
def test_a_signal_while_a_finished_sweep_is_looked_at_again_takes_no_row_away(
    faked, monkeypatch, tmp_path, number, after
):
    sweep = tiny_sweep()
    run(sweep, tmp_path)
    whole, looks, read_point = csv(tmp_path), [], sweeps.read_point

    def signalled(*arguments):
        if len(looks) == after:
            os.kill(os.getpid(), number)
        looks.append(arguments)
        return read_point(*arguments)

    monkeypatch.setattr(sweeps, "read_point", signalled)
    outcome, _ = run(sweep, tmp_path)
    assert outcome.stopped_by == number
    assert len(looks) == after + 1, "the run looked on"
    assert csv(tmp_path) == whole
    assert outcome.finished == 8


@pytest.mark.usefixtures("interruptible")
def test_a_run_that_is_stopped_keeps_the_rows_that_another_process_has_written(meanwhile, tmp_path):
    sweep = tiny_sweep()
    meanwhile(lambda: (run(sweep, tmp_path, only=["n=6"]), os.kill(os.getpid(), signal.SIGINT)))
    outcome, _ = run(sweep, tmp_path)
    assert (outcome.stopped_by, outcome.computed, outcome.finished) == (signal.SIGINT, 1, 5)
    assert csv(tmp_path).count(b"\n") == 6


def test_a_second_process_on_the_same_points_is_told_so_and_one_on_others_is_not(meanwhile, tmp_path):
    sweep, logs = tiny_sweep(), []
    meanwhile(lambda: logs.extend(run(sweep, tmp_path, only=[f"n={n}"])[1] for n in (6, 4)))
    run(sweep, tmp_path, only=["n=4"])
    assert ["another process computes the same" in log for log in logs] == [False, True]
    assert "another process" not in run(sweep, tmp_path)[1]
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]


def test_a_point_that_another_process_finished_meanwhile_is_taken_over(meanwhile, tmp_path):
    sweep = tiny_sweep()
    meanwhile(lambda: run(sweep, tmp_path, only=["n=6"]))
    outcome, log = run(sweep, tmp_path)
    assert (outcome.computed, outcome.finished) == (4, 8)
    assert "leftmost-hard n=6 seed=1: done by another process" in log


def test_a_damaged_point_of_another_part_is_named_and_not_counted(faked, tmp_path):
    sweep = tiny_sweep()
    run(sweep, tmp_path, only=["n=6"])
    point = select(sweep.points, only=["n=6"])[0]
    point.path(tmp_path).write_bytes(b"half")
    outcome, log = run(sweep, tmp_path, only=["n=4"])
    assert outcome.finished == 7
    assert f"damaged, left, because this run is not to compute it: {point}: " in log


@pytest.mark.needs("theory")
def test_what_killed_processes_left_is_cleared_away(faked, tmp_path):
    sweep = tiny_sweep()
    run(sweep, tmp_path, only=["seed=1"])
    missing = sweep.points[0].path(tmp_path)
    bounds = tmp_path / "bounds" / "variant=softmax" / "n=4" / "seed=0.json"
    bounds.parent.mkdir(parents=True)
    left = [path.with_name(f".{path.name}.0123456789abcdef.tmp") for path in (missing, bounds)]
    for path in left:
        path.write_text("half a file")
        os.utime(path, (0, 0))
    living = missing.with_name(f".{missing.name}.fedcba9876543210.tmp")
    living.write_text("half a file")
    run(sweep, tmp_path)
    assert [path for path in left if path.exists()] == []
    assert living.exists()


def test_a_directory_without_a_sweep_is_refused_and_so_is_one_in_whose_plan_anything_was_changed(tmp_path):
    refused("directory", load_sweep, tmp_path)
    plan = tmp_path / "sweep.json"
    plan.write_text("{}")
    refused("", read_plan, tmp_path)
    tiny_sweep().plan.write(plan)
    assert read_plan(tmp_path) == tiny_sweep().plan
    text = plan.read_text()
    for before, after in (("tiny", "tine"), ('"n": 4', '"n": 5'), ("false", "true"), ('"title"', '"titld"')):
        assert before in text
        plan.write_text(text.replace(before, after, 1))
        assert "run the sweep again: what is measured is kept" in refused("", read_plan, tmp_path)
    write_sealed(plan, "plan of a sweep", {"config": "", "title": ""})
    refused("", read_plan, tmp_path)


def test_the_measurement_gets_the_options_of_the_config(monkeypatch, tmp_path):
    seen = []

    def noting(model, tokens, **options):
        seen.append((tokens.shape, {k: v for k, v in options.items() if k != "progress"}))
        return fake_flip_sensitivity(model, tokens, **options)

    monkeypatch.setattr(sweep_points, "flip_sensitivity", noting)
    inputs = "[inputs]\ncount = 3\n"
    measure = '[measure]\nflips = { kind = "substitute", sample = 5 }\nmeasure = "l1"\nengine = "vmap"\n'
    placement = "[placement]\nbatch_size = 2\nmemory_budget = 999\n"
    run(tiny_sweep(after=inputs + measure + placement), tmp_path, only=["n=6", "seed=1", "variant=softmax"])
    ((shape, options),) = seen
    assert shape == (3, 6)
    assert options == {
        "flips": Substitute(sample=5, seed=1),
        "measure": L1(),
        "engine": Vmap(),
        "placement": Placement(batch_size=2, memory_budget=999),
    }


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "make room there, or have the quota raised"),
        (errno.EROFS, "mount it writable, or use another path"),
        (errno.EFBIG, "raise the limit on the size of a file (ulimit -f)"),
    ],
)
def test_a_disk_that_takes_no_more_ends_the_run_at_once_and_keeps_what_is_done(
    faked, monkeypatch, tmp_path, number, remedy
):
    write_point = sweeps.write_point

    def full(*arguments):
        if len(faked) == 3:
            raise OSError(number, os.strerror(number))
        return write_point(*arguments)

    monkeypatch.setattr(sweeps, "write_point", full)
    outcome, _ = run(tiny_sweep(), tmp_path)
    assert (len(faked), outcome.finished, outcome.failures, outcome.exit_code) == (3, 2, (), 1)
    assert outcome.unwritable == f"{os.strerror(number)}: nothing more can be kept in {tmp_path}; {remedy}"
    assert outcome.ended_early
    monkeypatch.setattr(sweeps, "write_point", write_point)
    again, _ = run(tiny_sweep(), tmp_path)
    assert (again.computed, again.finished, again.exit_code) == (6, 8, 0)


def test_links_in_place_of_files_are_replaced_and_nothing_outside_is_written(faked, tmp_path):
    outside, out, sweep = tmp_path / "outside", tmp_path / "out", tiny_sweep()
    outside.write_text("mine")
    point = sweep.points[0].path(out)
    point.parent.mkdir(parents=True)
    for link in (point, out / "points.csv", out / "sweep.json", out / "sweep.toml"):
        link.symlink_to(outside)
    outcome, log = run(sweep, out)
    assert outcome.exit_code == 0
    assert "damaged, computed again" in log
    assert outside.read_text() == "mine"
    assert not [path for path in out.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("name", ["points", "points/variant=softmax"])
def test_a_folder_that_leads_out_of_the_directory_is_refused_before_anything_is_measured(
    faked, tmp_path, name
):
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(outside)
    assert "leads out of it" in refused("directory", run, tiny_sweep(), out)
    assert faked == []
    assert not any(outside.iterdir())


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        ("lengths = [4, 6]", "lengths = [2, 4, 6]", 4),
        ("seeds = 2", "seeds = 3", 4),
        ('"leftmost-hard"]', '"leftmost-hard", "unbounded"]', 4),
        ('title = "tiny"', 'title = "still tiny"', 0),
    ],
)
def test_a_sweep_that_grows_keeps_its_points_and_never_stands_beside_the_report_of_the_smaller_one(
    tmp_path, before, after, more
):
    run(tiny_sweep(), tmp_path)
    for name in ("report.html", "summary.csv"):
        (tmp_path / name).write_text("of the smaller one")
    run(tiny_sweep(), tmp_path)
    assert (tmp_path / "report.html").exists()
    larger = tiny_sweep(before, after)
    outcome, log = run(larger, tmp_path)
    assert (outcome.computed, outcome.finished) == (more, 8 + more)
    assert "the report of the one before is removed" in log
    assert not list(tmp_path.glob("report.html")) + list(tmp_path.glob("summary.csv"))
    assert (tmp_path / "sweep.toml").read_text() == larger.text
    assert len(load_sweep(tmp_path).points) == 8 + more


@pytest.mark.usefixtures("faked")
@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        ("width = 4", "width = 8", "model.width: 4 there, 8 here"),
        ("lengths = [4, 6]", "lengths = [6, 8]", "lengths: 4 there only"),
        ("seeds = 2", "seeds = 1", "seeds: 1 there only"),
        ('variants = ["softmax", ', "variants = [", 'variant "softmax" there only'),
        (
            "[model]",
            'measure = {measure = "l1"}\n[model]',
            "measure.measure: {'kind': 'l2'} there, {'kind': 'l1'} here",
        ),
        ("[model]", "inputs = {count = 2}\n[model]", "what its inputs are"),
    ],
)
def test_another_config_is_refused_in_a_directory_with_points_and_changes_nothing(
    tmp_path, before, after, difference
):
    run(tiny_sweep(), tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="Name another directory") as refused:
        run(tiny_sweep(before, after), tmp_path)
    assert f"differ: {difference}. " in str(refused.value)
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_config_without_points_and_points_without_a_plan_may_be_replaced(faked, tmp_path):
    wider = tiny_sweep("width = 4", "width = 8")
    tiny_sweep().plan.write(tmp_path / "sweep.json")
    assert run(wider, tmp_path)[0].computed == 8
    (tmp_path / "sweep.json").unlink()
    assert run(tiny_sweep(), tmp_path)[0].computed == 8


CONFIG = TINY.replace("seeds = 2", "seeds = 5")

RUN = """
import sys
from pathlib import Path
from rich.console import Console
from jaxsens.core.sweeps.sweep import run_sweep
from jaxsens.core.sweeps.points import select
from jaxsens.core.sweeps.config import load_sweep_config

sweep = load_sweep_config(sys.argv[1])
sys.exit(run_sweep(sweep, Path(sys.argv[2]), select(sweep.points), Console(stderr=True)).exit_code)
"""


@pytest.mark.long
def test_two_sweeps_of_one_directory_at_once_do_no_harm_and_share_the_work(tmp_path):
    config, alone, shared = (tmp_path / name for name in ("sweep.toml", "alone", "shared"))
    config.write_text(CONFIG)
    command = [sys.executable, "-c", RUN, str(config), str(shared)]
    root = Path(__file__).resolve().parents[3]
    processes = [subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    sweep = load_sweep_config(config)
    assert run_sweep(sweep, alone, select(sweep.points), quiet()).finished == 20
    for process in processes:
        _, log = process.communicate(timeout=300)
        assert process.returncode == 0, log
    assert (shared / "points.csv").read_bytes() == (alone / "points.csv").read_bytes()
    assert len(list(shared.glob("points/*/*/[!.]*.parquet"))) == 20
    assert not [path for path in shared.rglob(".*") if path.is_file()]
