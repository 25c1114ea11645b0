"""How many examples a test has whose example takes longer than usual."""

from hypothesis import settings

#: For an example that makes a namespace or runs a program.
FEW = max(3, settings().max_examples // 2)
