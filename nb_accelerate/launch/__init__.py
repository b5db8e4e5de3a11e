"""Kernel side: from a plan to processes, messages and an end. Knows no torch."""
