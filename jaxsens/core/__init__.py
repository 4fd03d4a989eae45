"""Flip sensitivity, one room a step of a measurement.

`subjects` takes any model, `flips` lists what is flipped, `checks` refuses what cannot be measured, `engines` compute a
block of flips, `placement` runs an engine over all of them, `digits` measures again what rounding has left without
digits, `estimates` orders flips where all are too many, `results` holds what was found and `pictures` draws it. `rows`
measures rows, layers and attention. The files beside this one put the steps together. `engines.md` has the mathematics.
"""
