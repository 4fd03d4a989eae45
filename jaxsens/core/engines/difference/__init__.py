"""The exact difference engine: carries a flip's change through the network without subtracting two outputs."""
