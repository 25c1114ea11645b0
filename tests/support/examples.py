"""How many examples a test has whose example takes longer than usual."""

from typing import Final

from hypothesis import settings

#: For an example that makes a namespace or runs a program.
FEW: Final = max(3, settings().max_examples // 2)
