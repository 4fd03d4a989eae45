"""What a measurement is asked: what is flipped, what is measured of the change, and by which engine.

Each question has one kind of value object: `flips`, `measures`, `engines`. An object is frozen and hashable, checks
itself when it is made, prints as the call that makes it, and owns what is known about it: a flip its edit, a measure
its formula, unit and label, an engine its options. `value.read` makes them of shorthands, names and TOML tables, and
`words` of the words of a command line, by one validator. Nothing here loads JAX before something is computed.
"""
