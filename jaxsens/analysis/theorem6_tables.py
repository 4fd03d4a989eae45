"""The tables of the Theorem 6 report, and what they say in words."""

from __future__ import annotations

from jaxsens.analysis.report_tables import ReportTable, duration
from jaxsens.analysis.theorem6_data import Group, Theorem6Data
from jaxsens.experiments.theorem6_results import PlannedModel, lines_of

_DASH = "\N{EM DASH}"

_LEAST = 1e-9
"""In nats. Levels that are closer to one another, or to 0, are the same but for rounding: no share of them is taken."""


def model_table(data: Theorem6Data) -> ReportTable:
    """What each model is, what it was trained on, and whether Lemma 5's condition on embeddings holds for it."""
    rows = [
        (
            model.name,
            model.description,
            model.task,
            model.made_language().name,
            "bounded" if model.bounded else "unbounded",
            _reach(model),
            _DASH if model.steps is None else str(model.steps),
        )
        for model in data.plan.models
    ]
    header = ("model", "what it is", "task", "language", "position embeddings", "longest trained on", "steps")
    return ReportTable(caption="", header=header, rows=tuple(rows), numeric=2)


def prediction_table(data: Theorem6Data, group: Group) -> ReportTable:
    """Cross-entropy by model and length beside the lines, in nats."""
    rows = []
    for model in group.names:
        for n in data.spreads(model, lambda row: row.n):
            lines, found = lines_of(group.language, n), data.cross_entropy(model, n)
            row = [
                model,
                str(n),
                f"{found.mean:.4f}",
                f"{found.error:.4f}",
                f"{lines.optimum:.4f}",
                f"{lines.unigram:.4f}",
                f"{lines.chance:.4f}",
                f"{100 * (found.mean / lines.unigram - 1):+.1f} %" if lines.unigram > _LEAST else _DASH,
                f"{found.mean - lines.optimum:.4f}",
            ]
            if group.has_choice:
                choice = data.choice(model, n)
                row += [f"{choice.mean:.4f}", f"{choice.error:.4f}", f"{lines.choice_bound:.4f}"]
            rows.append(
                tuple(text.replace("-", "\N{MINUS SIGN}") if k else text for k, text in enumerate(row))
            )
    header = (
        "model",
        "n",
        "cross-entropy",
        "\N{PLUS-MINUS SIGN}",
        "optimum",
        "unigram",
        f"log {group.language.outcomes}",
        "to unigram",
        "to optimum",
        *(("choosing", "\N{PLUS-MINUS SIGN}", group.gap) if group.has_choice else ()),
    )
    caption = (
        f"{group.title}: cross-entropy of the next symbol in nats, with its standard error "
        "(in cross_entropy.csv by seed, with every digit)"
    )
    return ReportTable(caption, header, tuple(rows), numeric=len(header) - 1)


def recognition_table(data: Theorem6Data, group: Group) -> ReportTable:
    """Accuracy and margin by model and length: medians over seeds."""
    rows = []
    for model in group.names:
        margins = data.spreads(model, lambda row: row.margin)
        for n, share in data.spreads(model, lambda row: row.accuracy).items():
            margin = f"{margins[n].median:.4g}".replace("-", "\N{MINUS SIGN}")
            rows.append(
                (model, str(n), f"{share.median:.3f}", f"{share.low:.3f} to {share.high:.3f}", margin)
            )
    return ReportTable(
        f"{group.title}: medians over seeds (in recognition.csv by seed, with every digit)",
        ("model", "n", "accuracy", "smallest to largest seed", "margin"),
        tuple(rows),
        numeric=4,
    )


def run_table(data: Theorem6Data) -> ReportTable:
    """What was run, on what, with what."""
    plan, cells = data.plan, data.cells
    rows = [
        ("models and lengths", f"{len(cells)} of {len(plan.cells)}"),
        ("seeds", ", ".join(map(str, plan.seeds))),
        ("words a length and seed", str(plan.words)),
        ("words a length and seed whose flips are measured", str(plan.inputs)),
        ("flips", _flips(data)),
        ("evaluating took", duration(sum(cell.seconds for cell in cells))),
    ]
    for name, values in (
        ("engine", [cell.engine for cell in cells]),
        ("number format", [cell.dtype for cell in cells]),
        *((name, [cell.versions[name] for cell in cells]) for name in cells[0].versions),
    ):
        rows.append((name, "; ".join(dict.fromkeys(values))))
    return ReportTable(caption="", header=(), rows=tuple(rows))


def prediction_sentences(data: Theorem6Data, group: Group) -> tuple[str, ...]:
    """What became of each model's cross-entropy at the longest prefixes."""
    found = []
    for model in group.names:
        n = data.longest(model)
        lines, value = lines_of(group.language, n), data.cross_entropy(model, n).mean
        text = f"{model}: after n = {n} symbols the cross-entropy is {value:.4f}, "
        if group.has_choice and lines.bound is not None and lines.choice_bound:
            excess, choice = value - lines.optimum, data.choice(model, n).mean
            text += (
                f"{excess:.4f} above the optimum {lines.optimum:.4f}; Theorem 6 says at least "
                f"{lines.choice_bound:.4f} for soft attention in the limit. Choosing which bracket closes costs "
                f"{100 * choice / lines.choice_bound:.0f} % of what a blind guess does."
            )
        else:
            text += f"{_beside(value, lines.unigram)} the unigram level {lines.unigram:.4f}; "
            way = lines.unigram - lines.optimum
            if way > _LEAST:
                share = (value - lines.optimum) / way
                text += f"the optimum is {lines.optimum:.4f}. That is "
                # Who guesses worse than the frequencies of the symbols do is on no way between the two.
                above = round(100 * share) > 100
                text += (
                    "above chance." if above else f"{_percent(share)} of the way from the optimum to chance."
                )
            else:
                text += "the optimum is the same: the prefix says nothing of what follows."
        found.append(text)
    return tuple(found)


def recognition_sentences(data: Theorem6Data, group: Group) -> tuple[str, ...]:
    """What became of each model's accuracy and margin on the longest words."""
    found = []
    for model in group.names:
        n = data.longest(model)
        share = data.spreads(model, lambda row: row.accuracy)[n].median
        margin = data.spreads(model, lambda row: row.margin)[n].median
        text = f"{margin:.3g}".replace("-", "\N{MINUS SIGN}")
        found.append(
            f"{model}: at n = {n} it labels {100 * share:.0f} % of the words right, by a margin of {text}."
        )
    return tuple(found)


def missing_text(data: Theorem6Data) -> str:
    """Which models and lengths are missing, and why models could not be trained; empty if nothing is missing."""
    failures = [
        f"{model.name} could not be trained ({model.failure})" for model in data.plan.models if model.failure
    ]
    lacking: dict[str, list[int]] = {}
    for model, n in data.missing:
        lacking.setdefault(model, []).append(n)
    failed = {model.name for model in data.plan.models if model.failure}
    listed = [
        f"{name} at n = {', '.join(map(str, ns))}" for name, ns in lacking.items() if name not in failed
    ]
    parts = failures + ([f"not evaluated: {'; '.join(listed)}"] if listed else [])
    return "" if not parts else f"{'; '.join(parts)}. Run the same experiment again to go on."


def _beside(value: float, line: float) -> str:
    far = f"{abs(value - line):.4f} nats" if line <= _LEAST else f"{100 * abs(value / line - 1):.1f} %"
    return f"{far} {'below' if value < line else 'above'}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %".replace("-", "\N{MINUS SIGN}")


def _reach(model: PlannedModel) -> str:
    return _DASH if model.longest_trained is None else str(model.longest_trained)


def _flips(data: Theorem6Data) -> str:
    measured = sum(row.flips for cell in data.cells for row in cell.sensitivity)
    population = sum(row.population for cell in data.cells for row in cell.sensitivity)
    return (
        f"all {measured:,}" if measured == population else f"random samples: {measured:,} of {population:,}"
    )
