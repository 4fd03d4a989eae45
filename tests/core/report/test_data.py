from __future__ import annotations

from jaxsens.core.report.data import Spread, coincide


def test_lines_coincide_if_their_medians_differ_by_less_than_a_thousandth_everywhere():
    line = {8: Spread(1.0, 0.5, 2.0, 5), 16: Spread(0.5, 0.1, 1.0, 5)}
    assert coincide(line, {n: spread._replace(median=spread.median * 1.0005) for n, spread in line.items()})
    assert not coincide(line, line | {16: Spread(0.502, 0.1, 1.0, 5)})
    assert not coincide(line, {8: line[8]})
