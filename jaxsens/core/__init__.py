"""Measures flip sensitivity. Nothing here imports anything of jaxsens outside this package.

`models` takes any model, `flips` lists what is flipped, `measures` say what is measured of a change, `checks` refuse
what cannot be measured, `choice` takes an engine, `engines` compute a block of flips, `placement` runs an engine over
all of them, `results` holds the values, says which digits are right and draws them. `flip_sensitivity` and `explain`
put these steps together, `sweeps` repeat them over lengths, and `report` draws what comes of it.
"""
