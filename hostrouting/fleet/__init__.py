"""Many nodes: their verdicts where a fleet looks.

metrics    the report of `check` for Prometheus
"""
