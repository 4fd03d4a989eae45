"""Keeps compiled programs between processes: JAX's persistent compilation cache, made safe to share.

    BASE/jaxlib-VERSION-BACKEND-CPU/NAME-cache      a compiled program; CPU is a digest of what the processor can do

A program compiled for one processor may end the process on another, and JAX's own key does not tell them apart. JAX
also writes its files in place and never repairs them: half a program of a process that was killed stays. So JAX writes
in a temporary folder, with links to the programs that are there. New ones are copied out of it at the end and renamed.
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
import warnings
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from jaxsens.core.base.errors import InputError
from jaxsens.core.base.files import try_writing_to, write_bytes
from jaxsens.core.base.strict import is_path, naming_arguments

_SUFFIX = "-cache"
_ROOT = 0
_LEFT = f"jaxsens-compiled-{socket.gethostname()}-"  # before the number of the process


@dataclass(eq=False)
class KeptPrograms:
    """Where programs are kept, as `programs_kept` returns it; a `with` block ends it.

    Attributes:
        folder: where; None where they are not kept.
        why_not: why not, in that case.
    """

    folder: Path | None = None
    why_not: str = ""
    _own: Path | None = field(default=None, repr=False)
    _end: ExitStack = field(default_factory=ExitStack, repr=False)

    def __str__(self) -> str:
        if self.folder is None:
            return f"compiled programs are not kept: {self.why_not}"
        return f"compiled programs are kept in {self.folder}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def keep(self) -> None:
        """Keeps what is new, while nothing is compiled. What fails loses nothing but time: it is compiled again."""
        # A folder that was deleted meanwhile is not made anew: others might write to it.
        if self.folder is None or self._own is None or not self.folder.is_dir():
            return
        with suppress(OSError):
            for entry in os.scandir(self._own):
                new = entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)
                if new and not os.path.lexists(self.folder / entry.name):
                    write_bytes(self.folder / entry.name, Path(entry.path).read_bytes())

    def close(self) -> None:
        """Keeps what is new, and restores JAX's settings."""
        global _open
        if _open is self:
            _open = None
        self._end.close()
        atexit.unregister(self.close)


_open: KeptPrograms | None = None  # whose folder JAX uses


@naming_arguments
def programs_kept(folder: str | os.PathLike[str] | None = None) -> KeptPrograms:
    """Keeps the programs that JAX compiles from now on, and loads those that earlier processes kept.

    It begins where it is called: at the top of a script or a notebook, one call holds until the process ends. As a
    block, `with jaxsens.programs_kept(): ...`, it ends with it and restores JAX's settings. One folder is used at a
    time: a call without a folder uses that of the call before, and a call with another folder ends that one. A process
    that is killed keeps none of its programs.

    A kept program was compiled from the same code for the same version of jaxlib, backend and processor: none ever
    changes a result. Share a folder only with users whom you trust: the programs in it are run. A folder that others
    can write to, or that belongs to another user, is not used. Nothing is removed: delete the folder when it is too
    large. Nothing is kept where JAX_ENABLE_COMPILATION_CACHE is off. With `jax.distributed`, call this after its
    initialisation.

    Args:
        folder: where programs lie, in a folder for each version of jaxlib, backend and processor. By default in
            JAX_COMPILATION_CACHE_DIR, or else in ~/.cache/jaxsens/compiled, if that can be written to.

    Returns:
        The folder, or why nothing is kept.

    Raises:
        InputError: if the folder that was given cannot be written to, or can be by others.

    Warns:
        UserWarning: if the default folder can be written to by others.

    >>> kept = programs_kept("compiled")  # doctest: +SKIP
    """
    return cache_in(folder, "programs_kept", "folder", "another folder")


def cache_in(folder: Any, function: str, argument: str, remedy: str) -> KeptPrograms:
    """As `programs_kept`; an error about the folder names `function` and `argument`, and the remedy."""
    import jax

    global _open
    if folder is not None and not is_path(folder):
        raise InputError.of(argument, folder, "the name of a folder, or None for the default one", function)
    settings: Any = jax.config
    if not settings.jax_enable_compilation_cache:
        return KeptPrograms(why_not="JAX_ENABLE_COMPILATION_CACHE is off")
    within = _open.folder if _open else None
    place, why_not = (within, "") if folder is None and within else _made_ready(folder)
    if place is None and folder is not None:
        raise InputError.of(argument, folder, f"{remedy}: {why_not}", function)
    programs = KeptPrograms(place, why_not)
    if place is None or place == within:
        return programs
    if _open is not None:
        _open.close()
    _remove_left()
    with ExitStack() as stack:
        prefix = f"{_LEFT}{os.getpid()}-"
        own = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True))
        )
        for entry in place.glob(f"*{_SUFFIX}"):
            if not entry.is_symlink():  # JAX would write through it
                os.symlink(entry.absolute(), own / entry.name)
        new = {
            "jax_compilation_cache_dir": str(own),
            "jax_persistent_cache_min_compile_time_secs": 0.0,
            "jax_persistent_cache_min_entry_size_bytes": -1,
            "jax_persistent_cache_enable_xla_caches": "none",  # they would be left in `own`
            "jax_compilation_cache_max_size": -1,  # a limit needs locks
        }
        stack.callback(_set, {name: getattr(settings, name) for name in new})
        _set(new)
        programs._own = own
        stack.callback(programs.keep)
        programs._end, _open = stack.pop_all(), programs
    atexit.register(programs.close)
    return programs


def _set(settings: dict[str, Any]) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def _made_ready(requested: Any) -> tuple[Path | None, str]:
    """The folder for this jaxlib, backend and processor; None, with the reason, if it cannot be used."""
    import jax

    set_for_jax = getattr(jax.config, "jax_compilation_cache_dir")  # noqa: B009 - pyright knows none of its settings
    if requested is None and "://" in str(set_for_jax):
        return None, f"JAX keeps them itself in {set_for_jax}"
    try:
        base = Path(
            requested or set_for_jax or os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        )
    except RuntimeError as error:  # from Path.expanduser
        return None, str(error)
    if not (requested or set_for_jax):
        base = base / "jaxsens" / "compiled"
    folder = base / f"jaxlib-{version('jaxlib')}-{jax.default_backend()}-{processor()}"
    try:
        base.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(exist_ok=True, mode=0o755)
        why = _strangers(base) or _strangers(folder)
        if why is None:
            try_writing_to(folder)
            return folder, ""
        if requested is None:
            warnings.warn(f"compiled programs are not kept: {why}", stacklevel=5)
        return None, why
    except OSError as error:
        return None, f"{base} cannot be written to ({error.strerror or error})"


def _strangers(folder: Path) -> str | None:
    """Returns who else could put programs there, which would run as this user, and the remedy; None if nobody could.

    A sticky bit does not help: it keeps others from removing files, and not from adding some.
    """
    if not hasattr(os, "getuid"):
        return None
    status, name = folder.stat(), shlex.quote(str(folder))
    if status.st_uid not in (os.getuid(), _ROOT):
        return f"{folder} belongs to another user, whose programs would run as you; make one of your own"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write to {folder}, and their programs would run as you: empty it, then chmod go-w {name}"
    return None


def processor() -> str:
    """Returns a digest of what this machine's processor can do: equal where code may be exchanged.

    It covers maker, model and every feature that Linux lists. Elsewhere it is one of the machine's own.
    """
    keys = ("vendor_id", "cpu family", "model", "model name", "flags")  # x86
    keys += ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features")  # ARM
    facts = {platform.machine()}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in keys:
                facts.add(f"{name.strip()}: {' '.join(sorted(value.split()))}")
    except OSError:
        facts.add(f"host {socket.gethostname()}")
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:12]


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
