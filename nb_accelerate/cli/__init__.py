"""The doors for terminals."""
