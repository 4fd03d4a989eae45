"""How Sphinx builds the site: `python -m sphinx -W docs build/site`."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
import typing
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxsens.core.engines.options import AskedEngine
from jaxsens.core.flips.flips import Flips
from jaxsens.core.measures import Measure

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "jaxsens"
author = "The jaxsens authors"
copyright = "2026, the jaxsens authors"
release = version("jaxsens")
version = release

extensions = [
    "myst_nb",  # pages and notebooks in MyST Markdown; cells are run
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",  # a page for each public name
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",  # source of each name, without a hosting
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxcontrib.programoutput",
    "formulas",  # of `_ext`
]
html_math_renderer = "mathml"
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]

# Pages

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Tables and lists of options are read where they are; warnings about what is missing are errors by `-W`.
nb_execution_mode = "cache"
nb_execution_excludepatterns = [
    "tutorials/published.ipynb"
]  # it needs published weights; its outputs are stored
nb_execution_cache_path = "../build/notebooks"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

# Code

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
_INHERITED = (
    "FlipSensitivity",
    "TransformerConfig",
    "analysis.RowChanges",
    "theory.CertifiedBound",
    "theory.Lemma5",
    "theory.Restriction",
    "theory.WorstInput",
)
_OPTIONS = (*Flips.kinds.values(), *Measure.kinds.values(), *AskedEngine.kinds.values())
autosummary_context = {
    "options_of": {
        **{f"jaxsens.{name}": [":inherited-members:"] for name in _INHERITED},
        **{f"jaxsens.{one.__name__}": [":no-members:"] for one in _OPTIONS},
        "jaxsens.Transformer": [":inherited-members: Module"],
        "jaxsens.KeptPrograms": [":members: close"],
        "jaxsens.pretrained.ModelChanges": [":members: of"],
    }
}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # signatures have them
python_use_unqualified_type_names = True
default_role = "code"
maximum_signature_line_length = 88

# Commands show their help as on a terminal of 88 columns, without colours.
os.environ.update(COLUMNS="88", NO_COLOR="1", TERM="dumb")
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ["PATH"]]
)

# Looks

html_theme = "sphinx_book_theme"
html_title = "jaxsens"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "use_download_button": False,
}
html_show_sourcelink = False


_LITERAL = re.compile(r"(`[^`]+`|(?<![\w*])\*(?=\S)[^*\n]+(?<=\S)\*(?![\w*]))")
"""Code, and words that are stressed."""


_SEVERAL = re.compile(r"^(\s{4,})((?:\w+, )+\w+)(?=: )")
"""Names of arguments or attributes that are explained together: Sphinx would take all but the last for a type."""


_AS_FOR_EVERY = re.compile(r"^(\s{4,})((?:\w+, )*\w+): as for every \w+ \(`(\w+)`\)\.(.*)")
"""The fields of an option whose meaning its base class states."""


def plain_text(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Escapes what formulas in docstrings mean otherwise than reStructuredText: |x - y|, and products a * b."""
    lines[:] = [
        _SEVERAL.sub(lambda found: found[1] + found[2].replace(", ", "/"), line)
        for line in of_every_kind(lines)
    ]
    for k, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = _LITERAL.split(line)
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            parts[2::2] = [
                re.sub(r"^(?=\w)", r"\\ ", part) for part in parts[2::2]
            ]  # the s of `Name`s
            lines[k] = "".join(parts)


def short_types(
    app: Any,
    what: str,
    name: str,
    obj: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Writes arrays as users import them, and the fields of a config with their types, without how they are checked."""
    if what == "class" and dataclasses.is_dataclass(obj) and signature:
        with suppress(NameError):  # a type that only type checkers import
            hints, own = typing.get_type_hints(obj), inspect.signature(obj)
            fields = [
                field.replace(annotation=Text(hints.get(name, Any)))
                for name, field in own.parameters.items()
            ]
            signature = str(own.replace(parameters=fields, return_annotation=own.empty))
            signature = signature.replace("<factory>", "...")
    shown = [text and text.replace("jaxlib._jax.Array", "Array") for text in (signature, returned)]
    return shown[0], shown[1]


class Text:
    """A type that `inspect` writes by the names that users import."""

    def __init__(self, kind: Any) -> None:
        self.text = re.sub(r"\b[a-z_]\w*\.(?:\w+\.)*(?=\w)", "", inspect.formatannotation(kind))

    def __repr__(self) -> str:
        return self.text


def of_every_kind(lines: list[str]) -> list[str]:
    """Returns a docstring in which fields that are "as for every kind" are explained as in the base class."""
    described: list[str] = []
    for line in lines:
        found = _AS_FOR_EVERY.match(line)
        if found is None:
            described.append(line)
            continue
        base = {"Flips": Flips, "Measure": Measure}[found[3]]
        attributes = inspect.getdoc(base).split("Attributes:\n")[1]
        texts = dict(re.findall(r"(?m)^    (\w+): (.*(?:\n {6,}.*)*)", attributes))
        described += [
            f"{found[1]}{name}: {' '.join(texts[name].split())}" for name in found[2].split(", ")
        ]
        described += [f"{found[1]}    {found[4].strip()}"] if found[4] else []
    return described


def true_links(
    app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Mends viewcode's pages: it takes all names of a file for documented under one module, and lists builtins."""
    if not pagename.startswith("_modules/"):
        return
    module = pagename.removeprefix("_modules/").replace("/", ".")
    package = ".".join(module.split(".")[:2])
    known = app.env.get_domain("py").objects

    def link(found: re.Match[str]) -> str:
        inside = (
            found[1].removeprefix(f"{module}.").removeprefix(f"{package}.").removeprefix("jaxsens.")
        )  # which module it took is by chance
        return next(
            (
                f'#{name}"'
                for name in (f"jaxsens.{inside}", f"{package}.{inside}", f"{module}.{inside}")
                if name in known
            ),
            found[0],
        )

    body = context.get("body", "")
    context["body"] = re.sub(
        r'#(jaxsens\.[\w.]+)"',
        link,
        body.replace('<li><a href="builtins.html">builtins</a></li>', ""),
    )


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect(
        "autodoc-process-docstring", plain_text, priority=400
    )  # before napoleon reads them
    app.connect("autodoc-process-signature", short_types)
    app.connect("html-page-context", true_links)
