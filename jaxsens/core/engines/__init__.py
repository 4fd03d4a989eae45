"""The engines: each computes the change of the output for a block of flips, and knows nothing of devices.

`vmap` is the specification. `one_key` has the closed forms of one moved key, which `incremental` and `difference`
share.
"""
