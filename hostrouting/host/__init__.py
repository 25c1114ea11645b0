"""The machine behind ports."""
