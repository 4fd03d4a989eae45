"""A table of mistakes: what a call, a config of a sweep and a command say of each, by the places of the problems;
and arguments of wrong types.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import shlex
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jaxsens
from jaxsens import InputError, Placement, TransformerConfig, logic, theory
from jaxsens.core.sweeps.config import parse_sweep_config
from tests.commands import run
from tests.core.sweeps.tiny import TINY
from tests.refusals import paths, refused
from tools.wrong_arguments import RIGHT, WRONG, Call, Tally, own_arguments, tried

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


CALLS = {
    "load_checkpoint": jaxsens.training.load_checkpoint,
    "load_result": jaxsens.load_result,
    "load": jaxsens.theory.WorstInput.load,
    "language": jaxsens.language,
    "corpus_table": jaxsens.corpus_table,
    "Softmax": jaxsens.Softmax,
    "Attention": jaxsens.Attention,
    "compile_formula": jaxsens.compile_formula,
    "critical_inverse_temperature": jaxsens.analysis.critical_inverse_temperature,
    "from_torch": jaxsens.from_torch,
    "And": logic.And,
    "CountComparison": logic.CountComparison,
    "Constant": logic.Constant,
    "automaton": logic.automaton,
    "subformulas": logic.subformulas,
    "compare": logic.compare,
    "n_gram": logic.n_gram,
    "Lemma5.load": theory.Lemma5.load,
    "evaluate_tokens": logic.evaluate_tokens,
    "hop_induction": logic.hop_induction,
    "check": theory.check,
}


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_a_wrong_type_is_one_error_that_names_it(name):
    if name == "from_torch":
        pytest.importorskip("torch")
    tally = Tally()
    tried(Call(name, CALLS[name], own_arguments().get(name, {})), tally)
    assert tally.said["refused"] > len(WRONG) / 2
    assert tally.wrong == []


@pytest.mark.parametrize("method", ["save", "to_html", "to_png", "to_svg"])
@pytest.mark.parametrize("wrong", ["object", "minus one", "true", "NUL", "surrogate", "lambda", "NaN"])
def test_a_path_that_no_file_can_have_is_refused(method, wrong):
    refused("path", getattr(RIGHT["result"](), method), WRONG[wrong])


def test_a_restriction_and_an_address_of_wrong_types_are_named():
    refused("restriction", theory.check, None, RIGHT["model"]())
    refused("address", jaxsens.service.Client, Path("x"), "t")


def test_a_formula_that_needs_no_layer_is_measured_by_a_function_of_its_output():
    model = jaxsens.compile_formula("Q_0", ["0", "1"])
    assert model.config.layers == 0
    found = jaxsens.flip_sensitivity(model, [0, 1, 1, 0], 2, jaxsens.LogProbability(0), progress=False)
    assert found.max == 0  # one output alone


WRONG_WORDS = ("", "nan", "-1", "1e400", "'", ".", "missing/such.file", "\udc80")
"""A command line has no NUL; a byte that is no UTF-8 becomes half of a surrogate pair."""
BASE: dict[str, tuple[str, ...]] = {
    "sweep": ("CONFIG", "--out", "out", "--list"),
    "plan": ("missing.toml",),
    "measure": ("--model", "alphabet_size=2", "--n", "4"),
    "corpus": ("--pretrained", "missing", "--texts", "missing.txt"),
    "train": ("missing.toml", "--out", "out"),
    "theorem6": ("missing.toml", "--out", "out"),
    "report": ("missing",),
    "status": ("missing",),
    "constructions": ("missing", "--measure"),
    "restrictions": ("--models", "0"),
    "serve": ("--model", "one=missing"),
}
"""What a command is called with beside the option: little work, or what is refused."""
ARGUMENT = "without an option"


def options(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The options of a command that take a value, as its help tells them."""
    return sorted(set(re.findall(r"(--[a-z0-9-]+) [A-Z{\[]", run(capsys, command, "--help")[1])))


def what_is_wrong(command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Gives an option, or the argument without one, a wrong value; returns what is wrong with the end of it."""
    given = list(BASE[command])
    if option == ARGUMENT:
        given[0] = value
    else:
        if option in given:
            at = given.index(option)
            del given[at : at + 2]
        given += [option, value]
    try:
        code, _, said = run(capsys, command, *given)
    except Exception as error:  # noqa: BLE001 - of any class
        return f"{command} {option} {value!r}: {type(error).__name__}: {error}"
    if code not in (0, 2) or "Traceback" in said or (code and not said.strip()):
        return f"{command} {option} {value!r}: exit code {code}: {said}"
    return None


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CONFIG").write_text(TINY)


@pytest.mark.parametrize(
    "command",
    [
        name if name in ("report", "status", "train") else pytest.param(name, marks=pytest.mark.long)
        for name in BASE
    ],
)
def test_a_wrong_value_of_an_option_is_one_error(command, capsys):
    asked = options(command, capsys) + [ARGUMENT] * (not BASE[command][0].startswith("-"))
    assert asked
    wrong = [what_is_wrong(command, option, value, capsys) for option in asked for value in WRONG_WORDS]
    assert [one for one in wrong if one] == []


def test_a_model_without_a_place_starts_no_service(capsys):
    code, _, said = run(capsys, "serve", "--model", "one")
    assert code == 2
    assert "--model = 'one': NAME=FOLDER" in said
    assert "http://" not in said


def test_a_service_closes_no_log_of_the_process_that_it_runs_in(capsys):
    class Log(logging.StreamHandler):
        def close(self) -> None:
            self.stream.close()
            super().close()

    log, umask = Log(io.StringIO()), os.umask(0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        code, _, said = run(capsys, "serve", "--model", "one=os:getcwd", "--port", port)
    finally:
        os.umask(umask)
    assert code == 2, said
    assert f"http://127.0.0.1:{port}" in said  # it did run
    assert not log.stream.closed
