"""An upper bound on the flip sensitivity of a softmax transformer, sound for every word of a length."""
