"""Strict config validation with pydantic, in Python and from TOML. All errors are reported at once, by path."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, time
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import pydantic
from pydantic.dataclasses import dataclass as pydantic_dataclass

from jaxsens.core.base import inputs
from jaxsens.core.base.errors import NO_VALUE, InputError, Location, Problem, Problems, collecting, path_of
from jaxsens.core.base.files import read_text_within

C = TypeVar("C", bound=type)
T = TypeVar("T")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

STRICT = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""Rejects unknown keys, 3.7 or "3" for a whole number, and "false" for a Boolean."""


# Configs in Python


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def config(cls: C) -> C:
    """Turns a class into a frozen dataclass whose fields pydantic checks. NumPy values are accepted.

    The constructor raises one `InputError` that lists every error. `__post_init__` runs once all fields are valid, and
    may raise another `InputError`.
    """
    # Defaults are checked too, because checks convert values: the name of a weighting becomes the weighting.
    options: pydantic.ConfigDict = {**STRICT, "arbitrary_types_allowed": True, "validate_default": True}
    made: Any = pydantic_dataclass(cls, frozen=True, config=options)
    names = tuple(one.name for one in dataclasses.fields(made) if not one.kw_only)
    validate = made.__init__

    @functools.wraps(validate)
    def __init__(self: Any, /, *args: Any, **values: Any) -> None:
        if len(args) > len(names):
            raise TypeError(f"{cls.__name__} has {len(names)} fields, but {len(args)} were given")
        values = dict(zip(names, args, strict=False)) | values
        try:
            validate(self, **values)
        except pydantic.ValidationError as error:
            problems = problems_of(error, made)
            raise InputError(*problems, subject=cls.__name__) from None

    made.__init__ = __init__
    return made


def with_fields(value: T, **changes: Any) -> T:
    """Returns a config, or another dataclass, with other values in some fields, which are not checked again: only for
    values that the package makes itself."""
    copy = object.__new__(type(value))
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(cast(Any, value))}
    copy.__dict__.update(fields | changes)  # the classes are frozen
    return copy


def later(default: Any) -> Any:
    """Returns a field that a config got after points had been measured with it.

    At its default it is left out of what describes the config (`config_tables.plain`), so that the keys of those points
    stay as they were.
    """
    return dataclasses.field(default=default, metadata={"later": True})


def is_later(field: dataclasses.Field[Any], value: object) -> bool:
    """Returns whether a field made by `later` has its default."""
    return bool(field.metadata.get("later")) and value == field.default


class _FieldErrors(ValueError):
    """The problems found by `checked_by`. The first step of each path is a field."""

    def __init__(self, problems: Problems) -> None:
        super().__init__(problems)
        self.problems = problems


@contextmanager
def field_errors() -> Iterator[Problems]:
    """Collects problems in a field's validator. They may be of other fields of the class too."""
    problems = Problems()
    yield problems
    if problems:
        raise _FieldErrors(problems)


def checked_by(check: Callable[..., Any], **options: Any) -> pydantic.PlainValidator:
    """Returns the validator of a field. `check` is like the functions of `jaxsens.core.base.inputs`:
    check(name, value, problems=problems, **options)."""

    def validate(value: Any, info: pydantic.ValidationInfo) -> Any:
        with field_errors() as problems:
            return check(info.field_name, value, problems=problems, **options)

    return pydantic.PlainValidator(validate)


def typed(
    name: str,
    table: Mapping[str, Any],
    classes: Mapping[str, type],
    problems: Problems,
    named: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """Returns the dataclass described by a table such as `{type = "Learned", max_length = 64}`, or None after errors.

    Args:
        name: the table's name, for messages.
        table: may contain further such tables.
        classes: the dataclasses, by `type`.
        problems: collects the errors.
        named: the values that have a name, by field.
    """
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in classes:
        hint = did_you_mean(kind, classes) if isinstance(kind, str) else f": one of {', '.join(classes)}"
        problems.add((name, "type"), kind, f"a table needs a known type{hint}")
        return None
    fields: dict[str, Any] = {}
    own = Problems()
    for key, value in table.items():
        if isinstance(value, Mapping):
            fields[key] = typed(key, value, classes, own, named)
        elif key != "type":
            names = (named or {}).get(key, {})
            fields[key] = names.get(value, value) if isinstance(value, str) else value
    made = None if own else read_table(classes[kind], fields, (), own, objects=True)
    problems.include(own, (name,))
    return made


Count = Annotated[int, checked_by(inputs.count)]
"""A whole number of at least 0."""

Positive = Annotated[int, checked_by(inputs.count, least=1)]
"""A whole number of at least 1."""

OptionalPositive = Annotated[int | None, checked_by(inputs.optional_count)]
"""A whole number of at least 1, or None."""


# Tables of a file

_LONGEST_TOML = 2**20
"""The bytes of the longest config that is read."""

_DEEPEST = 32
_SHALLOW = "no config has tables as deep"

_KEY = r"""(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
_DEEP_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*{_KEY}(?:\.[ \t]*{_KEY}){{{_DEEPEST}}}", re.MULTILINE)


def read_toml(path: str | os.PathLike[str], argument: str = "config") -> tuple[str, dict[str, Any]]:
    """Returns the text of a TOML file, and its table.

    Raises:
        InputError: if the file cannot be read, or is not TOML.
    """
    try:
        text = read_text_within(path, _LONGEST_TOML)
    except (OSError, ValueError) as error:
        raise InputError(f"{argument} = {str(path)!r}: a readable TOML file is needed ({error})") from error
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # as of a file that is opened as text
    return text, parse_toml(text, str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Returns the table of a TOML text. Raises an `InputError` that begins with `source` if it is not TOML."""
    deep = _DEEP_KEY.search(text)
    if deep is not None:  # the parser takes time quadratic in the parts
        line = text.count("\n", 0, deep.start()) + 1
        raise InputError(f"{source}: line {line}: a key of more than {_DEEPEST} parts; {_SHALLOW}")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of too many digits is a plain ValueError
        raise InputError(f"{source}: not TOML: {error}") from error
    inside: list[Any] = [table]
    for _ in range(_DEEPEST):
        inside = [one for part in inside for one in (part.values() if isinstance(part, dict) else part)]
        inside = [one for one in inside if isinstance(one, dict | list)]
    if inside:
        raise InputError(f"{source}: tables or lists more than {_DEEPEST} deep; {_SHALLOW}")
    return table


def read_fields(
    kind: type,
    table: object,
    path: str | Location,
    problems: Problems,
    *,
    objects: bool = False,
    **context: Any,
) -> dict[str, Any]:
    """Returns the fields of a dataclass given by a table, and the defaults of the others.

    A field with an error is reported and omitted. So one pass reports every error, and checks that depend only on valid
    fields can still run.

    Args:
        kind: the dataclass. Fields that are dataclasses are tables within the table.
        table: a table of a TOML file. It is converted to JSON, for which a strict check accepts a list as a tuple and a
            table as a dataclass, but no conversion between kinds of numbers.
        path: the path of the table within the file.
        problems: collects the errors.
        objects: whether `table` holds the objects (tuples, dataclasses) that a user writes as tables with their `type`.
            They are checked without conversion.
        context: passed to validators that need more than the value, as `info.context`.
    """
    for where in _dates(table, ()):
        problems.note((*path_of(path), *where), "dates and times are not accepted; put it in quotes")
    sound: dict[str, Any] = {}
    try:
        model, context = _fields_model(kind), {**context, "sound": sound}
        if objects:
            model.model_validate(table, context=context)
        else:
            model.model_validate_json(json.dumps(table, default=str), context=context)
    except pydantic.ValidationError as error:
        problems.include(problems_of(error, kind, objects), path)
    fields = table if isinstance(table, Mapping) else {}
    for field in dataclasses.fields(kind):
        if field.name not in fields and field.default is not dataclasses.MISSING:
            sound[field.name] = field.default
        elif field.name not in fields and field.default_factory is not dataclasses.MISSING:
            sound[field.name] = field.default_factory()
    return sound


def read_table(
    kind: type[T], table: object, path: str | Location, problems: Problems, **context: Any
) -> T | None:
    """Returns the dataclass that a table describes, or None after adding all errors below `path`. See `read_fields`."""
    own = Problems()
    fields = read_fields(kind, table, (), own, **context)
    if not own:
        try:
            return kind(**fields)
        except InputError as error:
            own.include(error.problems)
    problems.include(own, path)
    return None


@cache
def _fields_model(kind: type) -> type[pydantic.BaseModel]:
    """Returns a model with a dataclass's fields, which stores valid values in the context's dictionary `sound`."""

    def keep(cls: type, value: Any, info: pydantic.ValidationInfo) -> Any:
        info.context["sound"][info.field_name] = value  # pyright: ignore[reportOptionalSubscript]
        return value

    hints, fields = get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        fields[field.name] = (hints[field.name], ... if required else None)
    validators: dict[str, Any] = {"keep_the_sound": pydantic.field_validator("*")(classmethod(keep))}
    return pydantic.create_model(kind.__name__, __config__=STRICT, __validators__=validators, **fields)


def _dates(table: object, path: Location) -> Iterator[Location]:
    """Yields the paths of dates and times in a TOML table, which JSON does not support."""
    if isinstance(table, date | time):
        yield path
    elif isinstance(table, dict | list):
        for key, value in table.items() if isinstance(table, dict) else enumerate(table):
            yield from _dates(value, (*path, key))


# Calls


def naming_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Makes a public function say which argument was meant where it is called with one that it does not have."""
    names = inspect.signature(function).parameters

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if others := [name for name in kwargs if name not in names]:
            name = others[0]
            why = f"{name} = {kwargs[name]!r}: unknown argument{did_you_mean(name, names)}"
            raise TypeError(f"{function.__name__}: {why}")
        return function(*args, **kwargs)

    return called


def typed_arguments(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Makes a public function or method refuse arguments of other types than it is annotated with, by name.

    Texts, truth values, paths, functions, names of a `Literal`, mappings from texts, None and objects of the package's
    classes are checked, and sequences, collections and unions of these. Others are left to the function: numbers and
    arrays have limits.
    """
    names = inspect.signature(function).parameters
    method = next(iter(names), "") in ("self", "cls")

    @functools.wraps(function)
    def called(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        made = method and function.__name__ == "__init__"
        with collecting(type(args[0]).__name__ if made else function.__name__) as problems:
            for name, value in (*zip(names, args, strict=False), *kwargs.items()):
                rules = _rules(function, name) if name in names else ()
                if rules and not any(check(value) for check, _ in rules):
                    problems.add(name, value, " or ".join(text for _, text in rules))
        return function(*args, **kwargs)

    return called


Rule = tuple[Callable[[Any], bool], str]
"""The check of one type, and the type in words."""


@cache
def _rules(function: Callable[..., Any], name: str) -> tuple[Rule, ...]:
    """Returns the rules of the types that an argument may have; none if one of them is not checked."""
    hint = function.__annotations__.get(name, Any)
    try:
        hint = eval(hint, getattr(function, "__globals__", {})) if isinstance(hint, str) else hint
    except (NameError, AttributeError, TypeError):  # imported for type checkers alone
        return ()
    kinds = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    if any(get_origin(kind) is os.PathLike for kind in kinds):
        kinds = tuple(kind for kind in kinds if kind is not str)  # not every text is a path
    rules = tuple(rule for kind in kinds if (rule := _rule(kind)) is not None)
    return rules if len(rules) == len(kinds) else ()


def _rule(kind: Any) -> Rule | None:
    """Returns the rule of one type; None for a type that is left to the function."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in (None, NoneType):
        return lambda value: value is None, "None"
    if origin is Literal:
        choices = f"one of {', '.join(map(str, parts))}"
        return lambda value: isinstance(value, str | None) and value in parts, choices
    if origin is os.PathLike:
        return is_path, "a path"
    if origin in (Sequence, Collection, Mapping):
        rule = _rule(parts[0])
        if rule is None or (origin is Mapping and parts[0] is not str):
            return None
        text = "a mapping from texts" if origin is Mapping else f"a list, each {rule[1]}"
        return lambda value: isinstance(value, origin) and all(map(rule[0], value)), text
    if origin is Callable:
        return callable, "a function"
    if kind in (str, bool) or (isinstance(kind, type) and kind.__module__.startswith("jaxsens.")):
        text = {str: "a text", bool: "True or False"}.get(kind, f"a {kind.__module__}.{kind.__name__}")
        return lambda value: isinstance(value, kind), text
    return None


def is_path(value: object) -> bool:
    """Returns whether files can have this name: not empty, no NUL, and no half of a character."""
    try:
        return (
            isinstance(value, str | os.PathLike)
            and bool(os.fspath(value))
            and b"\0" not in os.fsencode(value)
        )
    except (UnicodeEncodeError, TypeError):
        return False


# Problems


def problems_of(error: pydantic.ValidationError, kind: type, objects: bool = False) -> list[Problem]:
    """Returns pydantic's errors about a dataclass. Errors about the members of one union become one."""
    problems: list[Problem] = []
    unions: dict[Location, tuple[Any, dict[str, None]]] = {}
    for detail in error.errors(include_url=False):
        loc, unknown = detail["loc"], detail["type"] in _UNKNOWN
        # An unknown key stays, whatever it is called: it is what the location ends with.
        path = tuple(p for k, p in enumerate(loc) if not _is_member(p) or (unknown and k == len(loc) - 1))
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, _FieldErrors):
            # The problems name the field: the last part of the location that is not a list index.
            field = max(k for k, part in enumerate(path) if isinstance(part, str))
            problems += [one.below(path[:field]) for one in cause.problems]
        elif isinstance(cause, InputError):
            problems += [one.below(path) for one in cause.problems]
        else:
            value = NO_VALUE if detail["type"] in _NO_VALUE else detail["input"]
            unions.setdefault(path, (value, {}))[1][_remedy(detail, path, kind, objects)] = None
    return problems + [
        Problem(path, value, " or ".join(remedies)) for path, (value, remedies) in unions.items()
    ]


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MISSING = ("missing", "missing_argument")
_NO_VALUE = (*_UNKNOWN, *_MISSING)


def _is_member(part: object) -> bool:
    """Returns whether part of a location is a union member (`int`, `tuple[int, ...]`, a class), not a key."""
    return isinstance(part, str) and (
        part in ("int", "float", "str", "bool") or part.endswith(("]", "-table")) or part[:1].isupper()
    )


def _remedy(detail: Any, path: Location, kind: type, objects: bool) -> str:
    if detail["type"] in _UNKNOWN:
        *above, key = (part for part in path if isinstance(part, str))
        keys = dict.fromkeys(_keys(kind).get(above[-1] if above else "", ()))
        # A key of another union member would not help.
        return f"unknown key{did_you_mean(key, [name for name in keys if name != key])}"
    if detail["type"] in _MISSING:
        return "required, but not given"
    if detail["type"] in ("bool_type", "bool_parsing"):
        return "True or False"
    context = detail.get("ctx", {})
    cls = context.get("class_name", context.get("class"))
    if objects and cls is not None:
        return f'should be a table {{type = "{cls}", ...}}'
    return detail["msg"].removeprefix("Value error, ").replace("Input should", "should")


@cache
def _keys(kind: type) -> dict[str, list[str]]:
    """Returns the keys of a dataclass's tables, by table name; "" is the dataclass itself."""
    keys = {"": [*field_names(kind)]}
    for name, hint in get_type_hints(kind).items():
        for part in _dataclasses(hint):
            keys.setdefault(name, []).extend(field_names(part))
    return keys


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in get_args(hint):
        yield from _dataclasses(part)


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns `; did you mean "lengths"?` if a known word is close, otherwise the known words if they are few."""
    names = tuple(names)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f'; did you mean "{close[0]}"?'
    return f"; known: {', '.join(names)}" if 0 < len(names) <= 30 else ""


def field_names(kind: type) -> tuple[str, ...]:
    """Returns the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))
