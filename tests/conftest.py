"""What holds for every test: eight fake CPU devices, a compilation cache and checked types."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

from tests.lanes import EXPLORED, examples, mark_long

ROOT = Path(__file__).resolve().parents[1]

# A suite that is started in the background inherits that Ctrl-C is ignored, and would hand it on to what it starts.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "jax" in sys.modules:
    raise RuntimeError("jax was imported before tests/conftest.py could set its environment")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the suite's time, and small programs gain nothing from optimisation. With these settings it
# takes about half as long (measured with jax 0.10). XLA refuses to start on a setting that it does not know, so other
# versions of jax compile as they do for users; `.ci/run` tests one of those too.
FLAGS = ["--xla_force_host_platform_device_count=8"]
if version("jax").startswith("0.10."):
    FLAGS += ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"]
    # A fifth less of a processor's time: the suite uses them all.
    FLAGS += ["--xla_cpu_parallel_codegen_split_count=1"]
given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([given, *(f for f in FLAGS if f.partition("=")[0] not in given)]).strip()
# The same small functions are compiled in every run; the limits' defaults would keep all of them out of the cache.
# Each test process has a cache of its own: one that reads what another is writing would warn. Workers inherit the
# environment that the first process has set.
CACHE = str(ROOT / ".cache" / "jax-tests")
if os.environ.get("JAX_COMPILATION_CACHE_DIR", CACHE).startswith(CACHE):
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{CACHE}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
# On a new machine nothing is there to be loaded, and writing takes a twentieth of the suite's time.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "1e6" if "CI" in os.environ else "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "agg")

# Tracing makes objects by the million, few of them garbage; looking at all of them as often as by default takes a tenth
# of the suite's time.
gc.set_threshold(200_000, 20, 100)

# In the pure functions on arrays, shapes and dtypes are checked as annotated where the environment asks for it, as
# `.ci/run` does for the long tests: it takes a seventh of the time. Not where users' arguments come in: what is wrong
# with those is for the package itself to say.
CHECKED = (
    *(f"jaxsens.core.models.parts.{name}" for name in ("choices", "masks", "positions", "weighting")),
    *(f"jaxsens.core.models.transformer.{name}" for name in ("layers", "trace")),
    "jaxsens.core.measures.formulas",
    "jaxsens.core.engines.vmap",
    *(
        f"jaxsens.theory.certified.{name}"
        for name in ("averages", "first_layer", "intervals", "layerwise", "setting", "two_layers")
    ),
    "jaxsens.training.steps",
)
# Classes of which JAX makes objects of whatever leaves: stacked arrays, shapes, axes.
TREES = ("LayerTrace",)
for name in CHECKED:
    file = (ROOT / name.replace(".", "/")).with_suffix(".py")
    if (
        not file.is_file() and ROOT.joinpath(*name.split(".")[:2]).is_dir()
    ):  # `tools.core_alone` has the core alone
        raise RuntimeError(f"CHECKED in tests/conftest.py names {name}, which is no module any more")


def checked(whole: Callable[..., Any], checker: Any, *, typechecker: Any) -> Callable[[Any], Any]:
    """`jaxtyping.jaxtyped` by this checker for classes, and for functions of which some annotation has a shape.

    The import hook wraps every function, nested ones anew at each call of the outer one. Where no shape is annotated
    that finds next to nothing, and it was half of the time of the tests of certified bounds. An annotation of a part of
    what is annotated is a string, which Python writes with either quote.
    """
    del typechecker  # the import hook's, which has no settings

    def decorate(one: Any) -> Any:
        if one.__name__ in TREES:
            return one
        given = getattr(one, "__annotations__", {}).values()
        if inspect.isfunction(one) and not any(set("'\"") & set(str(annotation)) for annotation in given):
            return one
        return whole(typechecker=checker)(one)

    return decorate


if os.environ.get("JAXSENS_TYPES") == "checked":
    import beartype

    an_int_is_a_float = beartype.BeartypeConf(is_pep484_tower=True)  # as for other type checkers
    jaxtyping.jaxtyped = partial(checked, jaxtyping.jaxtyped, beartype.beartype(conf=an_int_is_a_float))
    jaxtyping.install_import_hook(CHECKED, "beartype.beartype")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before items are selected by their marks."""
    mark_long(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what needs a package that `tools.core_alone` leaves out."""
    for name in (name for mark in item.iter_markers("needs") for name in mark.args):
        if not (ROOT / "jaxsens" / name).is_dir():
            pytest.skip(f"needs jaxsens.{name}")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handlers of signals, also where the tests were started with nohup; code must put them back."""
    own = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    own[signal.SIGTERM] = signal.getsignal(signal.SIGTERM)
    yield
    assert {number: signal.getsignal(number) for number in own} == own, "a handler was not put back"
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts distributions with entry points on the path. What packages bring is read anew, and again after the test."""
    from jaxsens.core.base import registry

    def install(folder: Path, name: str, lines: str, group: str = "engines") -> None:
        information = folder / f"{name}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[jaxsens.{group}]\n{lines}\n")
        monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        registry.entries.cache_clear()

    registry.entries.cache_clear()
    yield install
    registry.entries.cache_clear()


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the measurement of a sweep's points by the stand-in; the list fills with the lengths measured."""
    from tests.core.sweeps.tiny import fake_flip_sensitivity, measured_by

    measured: list[int] = []

    def fake(model: Any, tokens: Any, **options: Any) -> Any:
        measured.append(tokens.shape[1])
        options["progress"](1, 2)
        return fake_flip_sensitivity(model, tokens, **options)

    measured_by(monkeypatch, fake)
    return measured


@pytest.fixture
def anyio_backend() -> str:
    """What the tests that are coroutines run on."""
    return "asyncio"


@pytest.fixture(autouse=True, scope="module")
def programs_are_freed() -> Iterator[None]:
    """Frees a module's compiled programs after it: each holds memory maps, of which a process may have 65530 only.

    And sees that the module left JAX as it was, since what is left would change the numbers of other modules' tests.
    """
    yield
    if "jax" in sys.modules:
        jax: Any = sys.modules["jax"]
        jax.clear_caches()
        assert not jax.config.jax_enable_x64, "this module left JAX set to 64-bit types"
        assert jax.config.jax_default_matmul_precision is None, "this module left a matmul precision set"


# No deadline: the first example of a test compiles. The same examples every time, but for JAXSENS_EXPLORE.
settings.register_profile(
    "jaxsens",
    deadline=None,
    max_examples=examples(100),
    derandomize=EXPLORED == 1,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("jaxsens")
