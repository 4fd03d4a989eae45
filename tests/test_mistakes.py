"""A table of mistakes: what a call, a config of a sweep and a command say of each, by the places of the problems."""

from __future__ import annotations

import pickle
import shlex
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import jaxsens
from jaxsens import InputError, Placement, TransformerConfig
from jaxsens.core.sweeps.config import parse_sweep_config
from tests.commands import run
from tests.refusals import paths

SIZES: dict[str, Any] = {"alphabet_size": 3, "width": 4, "heads": 2, "layers": 1}
MODEL = jaxsens.Transformer(TransformerConfig(**SIZES), seed=0)
TABLES: dict[str, dict[str, Any]] = {
    "": {"lengths": [4, 6], "seeds": 2, "variants": ["softmax"], "statistics": ["mean"]},
    "model": SIZES,
}
OPTIONS = {"--tokens": "0120", "--model": "alphabet_size=3 width=4 heads=2"}


class Mistake(NamedTuple):
    """A fault as it is written in three places, with the path of its problem in each; None where it cannot be made."""

    call: tuple[str, Callable[[], object]] | None
    toml: tuple[str, dict[str, dict[str, Any]]] | None
    words: tuple[str, dict[str, str]] | None


def call(**given: Any) -> object:
    arguments: dict[str, Any] = {"model": MODEL, "tokens": [0, 1, 2, 0], **given}
    return jaxsens.flip_sensitivity(**arguments)


def config(tables: dict[str, dict[str, Any]]) -> object:

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key} = {written(one)}" for key, one in value.items()) + "}"
        if isinstance(value, list):
            return f"[{', '.join(map(written, value))}]"
        return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')

    lines: list[str] = []
    for name in dict.fromkeys([*TABLES, *tables]):
        lines += [f"[{name}]"] if name else []
        lines += [
            f"{k} = {written(one)}" for k, one in {**TABLES.get(name, {}), **tables.get(name, {})}.items()
        ]
    return parse_sweep_config("\n".join(lines), "sweep.toml")


def command(options: dict[str, str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The places that a command names, each at the beginning of its line."""
    model = dict(word.split("=") for word in f"{OPTIONS['--model']} {options.get('--model', '')}".split())
    every = {**OPTIONS, **options, "--model": " ".join(f"{key}={value}" for key, value in model.items())}
    given = [word for name, value in every.items() for word in (name, *shlex.split(value))]
    code, out, err = run(capsys, "measure", *given)
    assert (code, out) == (2, "")
    name, _, text = err.partition(": ")[2].partition(": ")
    assert name in ("measure", "flip_sensitivity")
    first, *others = text.splitlines()
    listed = [line.removeprefix("  - ") for line in others] if first.endswith(" errors") else [first]
    return [line.split(" = ")[0].split(": ")[0] for line in listed]


def asked(argument: str, kind: str, place: str = "", /, **fields: Any) -> Mistake:
    """A fault in an object that says what is measured, at a field of it; without one, in its kind."""
    words = [kind, *(f"{name}={value}".replace(" ", "") for name, value in fields.items())]
    inside, table = f".{place}" if place else "", {"kind": kind, **fields}
    return Mistake(
        (f"{argument}{inside}", lambda: call(**{argument: table})),
        (f"measure.{argument}{inside}", {"measure": {argument: table}}),
        (f"--{argument}{inside.replace('.', ' ', 1)}", {f"--{argument}": shlex.join(words)}),
    )


def of_model(field: str, value: Any) -> Mistake:
    """A fault in the config of a transformer."""
    return Mistake(
        (field, lambda: TransformerConfig(**{**SIZES, field: value})),
        (f"model.{field}", {"model": {field: value}}),
        (f"--model {field}", {"--model": f"{field}={value}"}),
    )


def placed(field: str, value: Any) -> Mistake:
    return Mistake(
        (field, lambda: Placement(**{field: value})),
        (f"placement.{field}", {"placement": {field: value}}),
        (f"--placement {field}", {"--placement": f"{field}={value}"}),
    )


MISTAKES = {
    "no such flips": asked("flips", "delet"),
    "symbols beyond the model": asked("flips", "substitute", "symbols", symbols=[0, 9]),
    "a position in two groups": asked("flips", "substitute", "groups.position", groups=[[0, 1], [1]]),
    "no neighbours": asked("flips", "neighbours", "k", k=0),
    "an unknown field": asked("flips", "neighbours", "kk", kk=3),
    "no such measure": asked("measure", "l3"),
    "an output twice": asked("measure", "l2", "outputs", outputs=[1, 1]),
    "a token against itself": asked("measure", "log-probability", "against", token=1, against=1),
    "no such engine": asked("engine", "fast"),
    "an empty batch": placed("batch_size", 0),
    "no width": of_model("width", 0),
    "heads that do not divide": of_model("heads", 3),
    "no such weighting": of_model("weighting", "hot")._replace(toml=None),  # every variant has one of its own
    "no such activation": of_model("activation", "step"),
    "a readout from behind": Mistake(
        ("readout", lambda: call(readout=-1)),
        ("model.readout", {"model": {"readout": -1}}),
        ("--readout", {"--readout": "-1"}),
    ),
    "a symbol beyond the alphabet": Mistake(
        ("tokens", lambda: call(tokens=[0, 9])), None, ("--tokens", {"--tokens": "09"})
    ),
    "an empty input": Mistake(
        ("tokens", lambda: call(tokens=[])), ("lengths", {"": {"lengths": []}}), ("--tokens", {"--tokens": "''"})
    ),
    "no such variant": Mistake(
        None, ("variants", {"": {"variants": ["softmx"]}}), ("--variant", {"--variant": "softmx"})
    ),
    "no such statistic": Mistake(None, ("statistics", {"": {"statistics": ["q101"]}}), None),
    "an unknown key": Mistake(None, ("sedes", {"": {"sedes": 3}}), None),
    "a negative number of seeds": Mistake(
        (("seeds", lambda: jaxsens.sweep({"m": lambda n, seed: MODEL}, [4], seeds=-1))),
        ("seeds", {"": {"seeds": -1}}),
        ("--seed", {"--seed": "-1"}),
    ),
}  # fmt: skip


def raised(make: Callable[[], object]) -> InputError:
    """The error of a call, which can be pickled."""
    with pytest.raises(InputError) as caught:
        make()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), paths(again), type(again)) == (
        str(caught.value),
        paths(caught.value),
        type(caught.value),
    )
    return caught.value


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_problem_wherever_it_is_made(name, capsys):
    in_python, in_file, in_words = MISTAKES[name]
    if in_python is not None:
        assert paths(raised(in_python[1])) == [in_python[0]]
    if in_file is not None:
        error = raised(lambda: config(in_file[1]))
        assert (paths(error), error.subject) == ([in_file[0]], "sweep.toml")
    if in_words is not None:
        assert command(in_words[1], capsys) == [in_words[0]]


def several(*names: str) -> dict[str, Any]:
    """What several mistakes of a table of the config say, together."""
    found: dict[str, Any] = {}
    for name in names:
        for table, keys in (MISTAKES[name].toml or ("", {}))[1].items():
            found.setdefault(table, {}).update(keys)
    return found


TOGETHER = (
    *(
        "no neighbours",
        "no such measure",
        "no such engine",
        "an empty batch",
        "no width",
        "no such activation",
    ),
    *("no such statistic", "an unknown key", "an empty input", "a negative number of seeds"),
)


def test_all_mistakes_come_together(capsys):
    wrong: dict[str, Any] = {"flips": {"kind": "neighbours", "k": 0}, "measure": "l3", "engine": "fast"}
    wrong |= {"tokens": [], "readout": -1, "progress": lambda: None, "placement": "cpu"}
    found = {place.partition(".")[0] for place in paths(raised(lambda: call(**wrong)))}
    assert found == {*wrong}
    expected = {toml[0] for name in TOGETHER if (toml := MISTAKES[name].toml) is not None}
    assert {*paths(raised(lambda: config(several(*TOGETHER))))} == expected
    # Whether a word is one of the model is not known while the model is not.
    words = {
        name: one.words
        for name in TOGETHER
        if (one := MISTAKES[name]).words is not None and "--tokens" not in one.words[1]
    }
    options: dict[str, str] = {}
    for _, given in words.values():
        options |= {option: f"{options.get(option, '')} {value}" for option, value in given.items()}
    assert {*command(options, capsys)} == {place for place, _ in words.values()}
