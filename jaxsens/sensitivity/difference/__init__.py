"""The exact difference engine: a flip's change carried through the network, two outputs never subtracted."""
