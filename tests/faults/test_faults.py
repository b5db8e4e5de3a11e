"""Random faults at random moments: the cell comes back, the culprit is named, nobody is left.

    pytest tests/faults                              a sample, with the seed of the day's test
    NB_ACCELERATE_FAULTS=200 pytest tests/faults     all of it
    NB_ACCELERATE_FAULT_SEED=7 pytest tests/faults   the one that failed
"""
