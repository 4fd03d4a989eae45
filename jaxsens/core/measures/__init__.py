"""What is measured of a change: the objects of `measure`, their formulas, units and labels."""
