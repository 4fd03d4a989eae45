"""`jaxsens constructions`: what is listed exists, what is refused is refused, and lines fit a terminal."""

from __future__ import annotations

import pytest

from jaxsens.cli import main
from jaxsens.core.base.errors import InputError
from jaxsens.formal.constructions.catalogue import EVERY_CONDITION, catalogue, construction, names
from jaxsens.formal.constructions.conditions import Condition

ENTRIES = {entry.name: entry for entry in catalogue()}


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys, *arguments: str) -> str:
    assert main(["constructions", *arguments]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines()) <= 80
    return out


@pytest.mark.parametrize("name", ["parity", "majority", "3-gram-ahead", "dyck"])
def test_a_condition_is_listed_where_the_construction_can_be_made(name):
    def can_be_made(condition: Condition) -> bool:
        try:
            construction(name, condition.name, autoregressive=condition.autoregressive)
        except InputError:
            return False
        return True

    assert [each for each in EVERY_CONDITION if can_be_made(each)] == list(ENTRIES[name].conditions)


def test_the_list_has_every_construction_with_its_conditions(capsys):
    lines = printed(capsys).splitlines()
    assert [line for line in lines if line.rstrip() in names()] == list(names())
    after = lines[lines.index("majority") + 2].strip()
    assert after == "temperature*, unbounded, temperature-bounded*, bounded-softmax, average-hard*"


def test_one_construction_prints_its_promise_in_every_condition_and_why_not_in_the_others(capsys):
    text = printed(capsys, "parity")
    assert "odd(#L[Q_1])" in text
    for condition in ENTRIES["parity"].conditions:
        promise = ENTRIES["parity"].build(condition).promise
        label = condition.name + (", autoregressive" if condition.autoregressive else "")
        block = text[text.index(f"condition    {label} ") :].split("\n\n")[0]
        assert f"{promise.layers} layers, {promise.heads} heads" in block
        assert promise.temperature in block
    assert "not unbounded, autoregressive:" in text
    assert "Theorem 21" in text
    assert text.count("uniform attention") == 2


def test_chiang_and_cholaks_print_their_options(capsys):
    text = printed(capsys, "chiang-cholak-parity")
    assert all(option in text for option in ("layer_norm=False", "log_length=False", "sharpness=1.0"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pairity"], "one of parity, "),
        (["--out", "x.md"], "require --measure"),
        (["parity", "--cap", "50"], "require --measure"),
        (["first", "--measure", "--cap", "2"], "2 errors"),
    ],
)
def test_refusals(arguments, message, capsys):
    assert main(["constructions", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
