"""A wrong argument of a function, or value of an option, is one error that names it."""

from __future__ import annotations

import io
import logging
import os
import re
import socket
from pathlib import Path

import pytest

import jaxsens
from jaxsens import logic, theory
from tests.commands import run
from tests.core.sweeps.tiny import TINY
from tests.refusals import refused
from tools.wrong_arguments import RIGHT, WRONG, Call, Tally, own_arguments, tried

CALLS = {
    "load_checkpoint": jaxsens.training.load_checkpoint,
    "load_result": jaxsens.load_result,
    "load": jaxsens.theory.WorstInput.load,
    "language": jaxsens.language,
    "corpus_table": jaxsens.corpus_table,
    "phase_diagram": lambda directory: jaxsens.analysis.phase_diagram(directory),
    "Softmax": jaxsens.Softmax,
    "Attention": jaxsens.Attention,
    "compile_formula": jaxsens.compile_formula,
    "critical_inverse_temperature": jaxsens.analysis.critical_inverse_temperature,
    "from_torch": jaxsens.from_torch,
    "And": logic.And,
    "CountComparison": logic.CountComparison,
    "Constant": logic.Constant,
    "automaton": logic.automaton,
    "violations": lambda formula, alphabet: logic.violations(formula, None, alphabet),
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
    "generalisation": ("missing.toml", "--out", "out"),
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
