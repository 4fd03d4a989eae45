"""Keeps compiled programs between processes: JAX's persistent compilation cache, made safe to share.

    BASE/jaxlib-VERSION-BACKEND-CPU/NAME-cache      a compiled program; CPU is a digest of what the processor can do

A program compiled for one processor may end the process on another, and JAX's own key does not tell them apart. JAX
also writes its files in place and never repairs them: half a program of a process that was killed stays. So JAX writes
in a temporary folder, with links to the programs that are there, and new ones are copied out of it and renamed.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shlex
import shutil
import socket
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from jaxsens.core.base.errors import Problems
from jaxsens.core.base.files import try_writing_to, write_bytes
from jaxsens.core.base.strict import naming_arguments, typed_arguments

_SUFFIX = "-cache"
_EVENTS = "/jax/compilation_cache/"
_ROOT = 0
_LEFT = f"jaxsens-compiled-{socket.gethostname()}-"  # before the number of the process
_SETTLED_SECONDS = 2.0  # JAX writes programs from several threads; one this old is complete.


@dataclass(eq=False)
class KeptPrograms:
    """What became of the programs that were needed, as `programs_kept` returns it; a `with` block ends it.

    Attributes:
        folder: where programs are kept; None where they are not.
        why_not: why not, in that case.
        needed: how many programs could have come from there.
        loaded: how many did.
        saved: seconds that compiling those had taken, less the time to load them.
    """

    folder: Path | None = None
    why_not: str = ""
    needed: int = 0
    loaded: int = 0
    saved: float = 0.0
    _publish: Callable[[float], None] = field(default=lambda settled: None, repr=False)
    _end: ExitStack = field(default_factory=ExitStack, repr=False)

    def __str__(self) -> str:
        if self.folder is None:
            return f"compiled programs are not kept: {self.why_not}"
        if self.needed == 0:
            return "no program was compiled that could be kept"
        text = f"{self.loaded} of {self.needed} compiled programs came from {self.folder}"
        return f"{text}, which saved about {self.saved:.0f} s" if self.saved >= 1 else text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def keep(self) -> None:
        """Keeps what is new, while nothing is compiled."""
        self._publish(0.0)

    def close(self) -> None:
        """Keeps what is new, and restores JAX's settings."""
        global _open
        if _open is self:
            _open = None
        self._end.close()
        atexit.unregister(self.close)


_open: KeptPrograms | None = None  # whose folder JAX uses


@naming_arguments
@typed_arguments
def programs_kept(folder: str | os.PathLike[str] | None = None) -> KeptPrograms:
    """Keeps the programs that JAX compiles from now on, and loads those that earlier processes kept.

    It begins where it is called: at the top of a script or a notebook, one call holds until the process ends. As a
    block, `with jaxsens.programs_kept(): ...`, it ends with it and restores JAX's settings. One folder is used at a
    time: a call without a folder uses that of the call before, and a call with another folder ends that one.

    A kept program was compiled from the same code for the same version of jaxlib, backend and processor: none ever
    changes a result. Who shares a folder trusts each other, since programs that lie there are run. A folder that others
    can write to, or that belongs to another user, is not used. Nothing is removed: delete the folder when it is too
    large. Nothing is kept where JAX_ENABLE_COMPILATION_CACHE is off. With `jax.distributed`, call this after its
    initialisation.

    Args:
        folder: where programs lie, in a folder for each version of jaxlib, backend and processor. By default in
            JAX_COMPILATION_CACHE_DIR, or else in ~/.cache/jaxsens/compiled, if that can be written to.

    Returns:
        The folder, and counts of programs needed and loaded; printed, it says what was saved.

    Raises:
        InputError: if the folder that was given cannot be written to, or can be by others.

    Warns:
        UserWarning: if the default folder can be written to by others.
    """
    return kept_in(folder, "programs_kept", "folder", "another folder")


def kept_in(folder: Any, subject: str, argument: str, remedy: str) -> KeptPrograms:
    """As `programs_kept`; an error about the folder names `subject` and `argument`, and the remedy."""
    kept, problems = KeptPrograms(), Problems(subject)
    if folder is not None and not (isinstance(folder, str | os.PathLike) and os.fspath(folder)):
        problems.add(argument, folder, "the name of a folder, or None for the default one")
        problems.raise_if_any()
    global _open
    with ExitStack() as begun:
        within = _open.folder if _open else None
        if _setting("jax_enable_compilation_cache"):
            kept.folder, kept.why_not = (within, "") if folder is None and within else _made_ready(folder)
        else:
            kept.why_not = "JAX_ENABLE_COMPILATION_CACHE is off"
            folder = None
        if kept.folder is None and folder is not None:
            problems.add(argument, folder, f"{remedy}: {kept.why_not}")
            problems.raise_if_any()
        elif kept.folder is not None and kept.folder == within:
            begun.enter_context(_counted(kept, lambda settled: None))
        elif kept.folder is not None:
            if _open is not None:
                _open.close()
            _remove_left()
            prefix = f"{_LEFT}{os.getpid()}-"
            temporary = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
            own = Path(begun.enter_context(temporary))
            for entry in kept.folder.glob(f"*{_SUFFIX}"):
                if entry.is_symlink():  # JAX would write through it
                    continue
                os.symlink(entry.absolute(), own / entry.name)
            begun.enter_context(_set(own))
            kept._publish = partial(_publish, own, kept.folder)
            begun.callback(kept.keep)
            begun.enter_context(_counted(kept, kept._publish))
            _open = kept
        kept._end = begun.pop_all()
    atexit.register(kept.close)
    return kept


def _made_ready(given: Any) -> tuple[Path | None, str]:
    """The folder for this jaxlib, backend and processor; None, with the reason, if it cannot be used."""
    import jax

    if given is None and "://" in (found := str(_setting("jax_compilation_cache_dir"))):
        return None, f"JAX keeps them itself in {found}"
    try:
        base = _default_base() if given is None else Path(given)
    except RuntimeError as error:  # from Path.expanduser
        return None, str(error)
    folder = base / f"jaxlib-{version('jaxlib')}-{jax.default_backend()}-{processor()}"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o755)
        why = _strangers(base) or _strangers(folder)
        if why is None:
            try_writing_to(folder)
            return folder, ""
        if given is None:
            warnings.warn(f"compiled programs are not kept: {why}", stacklevel=4)
        return None, why
    except OSError as error:
        return None, f"{base} cannot be written to ({error.strerror or error})"


def _strangers(folder: Path) -> str | None:
    """Returns who else could put programs there, which would run as this user, and the remedy; None if nobody could.

    A sticky bit does not help: it keeps others from removing files, and not from adding some.
    """
    if not hasattr(os, "getuid"):
        return None
    found, name = folder.stat(), shlex.quote(str(folder))
    if found.st_uid not in (os.getuid(), _ROOT):
        return f"{folder} belongs to another user, whose programs would run as you; make one of your own"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {folder}, and their programs would run as you: empty it, then chmod go-w {name}"
    return None


def _default_base() -> Path:
    set_for_jax = _setting("jax_compilation_cache_dir")
    if set_for_jax:
        return Path(set_for_jax)
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "jaxsens" / "compiled"


def processor() -> str:
    """Returns a digest of what this machine's processor can do: equal where code may be exchanged.

    It covers maker, model and every feature that Linux lists. Elsewhere it is one of the machine's own.
    """
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags")  # x86
    wanted += ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features")  # ARM
    found = {platform.machine()}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                found.add(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    except OSError:
        found.add(f"host {socket.gethostname()}")
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()[:12]


@contextmanager
def _set(own: Path) -> Iterator[None]:
    """Has JAX cache every program in `own`; restores its settings afterwards."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    settings: dict[str, Any] = {
        "jax_compilation_cache_dir": str(own),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
        "jax_persistent_cache_enable_xla_caches": "none",  # they would be left in `own`
        "jax_compilation_cache_max_size": -1,  # a limit needs locks
    }
    before = {name: _setting(name) for name in settings}

    def update(settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()

    update(settings)
    try:
        yield
    finally:
        update(before)


def _setting(name: str) -> Any:
    import jax

    return getattr(jax.config, name)


@contextmanager
def _counted(kept: KeptPrograms, publish: Callable[[float], None]) -> Iterator[None]:
    """Counts the programs that are needed and loaded, and publishes what is new before each."""
    import jax.monitoring

    def on_event(event: str, **more: Any) -> None:
        if event == f"{_EVENTS}compile_requests_use_cache":  # before JAX looks into its folder
            kept.needed += 1
            publish(_SETTLED_SECONDS)
        elif event == f"{_EVENTS}cache_hits":
            kept.loaded += 1

    def on_duration(event: str, duration_secs: float, **more: Any) -> None:
        if event == f"{_EVENTS}compile_time_saved_sec":
            kept.saved += duration_secs

    jax.monitoring.register_event_listener(on_event)
    jax.monitoring.register_event_duration_secs_listener(on_duration)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_listener(on_event)
        jax.monitoring.unregister_event_duration_listener(on_duration)


def _remove_left() -> None:
    """Removes the temporary folders of this user's processes that were killed on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_LEFT}*-*"):
        number = folder.name.removeprefix(_LEFT).partition("-")[0]
        with suppress(OSError, ValueError):
            if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
                continue
            try:
                os.kill(int(number), 0)
            except ProcessLookupError:
                shutil.rmtree(folder, ignore_errors=True)


def _publish(own: Path, shared: Path, settled: float) -> None:
    """Copies new programs out. One counts as complete `settled` seconds after JAX began to write it.

    Failures lose nothing but time: a program is then compiled again.
    """
    complete = time.time() - settled
    if not shared.is_dir():  # it was deleted meanwhile: made anew, others might write to it
        return
    with suppress(OSError):
        for entry in os.scandir(own):
            new = entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)
            if new and entry.stat().st_mtime <= complete and not os.path.lexists(shared / entry.name):
                write_bytes(shared / entry.name, Path(entry.path).read_bytes())
