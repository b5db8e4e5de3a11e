"""How fast launching is, beside its peers, in one run: `python -m benchmarks` (`make bench`).

Run by hand, never as a test. Everything is driven in real kernels, as a notebook would; times are
CLOCK_MONOTONIC, which all processes share; peers take turns in an order shuffled anew in every
round, and a ratio is one of medians.
"""
