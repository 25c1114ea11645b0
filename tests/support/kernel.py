"""What a test needs that asks the real kernel."""

from __future__ import annotations

import pytest

from hostrouting.testing.kernel_node import KernelNode

needs_kernel = pytest.mark.skipif(KernelNode.why_not() is not None, reason=str(KernelNode.why_not()))
