"""One key moves and the others stay: what every row of a layer passes on then, without running the layer again."""
