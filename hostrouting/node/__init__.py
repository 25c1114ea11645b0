"""A whole node: its capabilities, their boot files, the proofs of a plan, and the answers of the commands."""
