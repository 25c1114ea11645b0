"""The model in memory against the kernel in short histories; testing/test_kernel_equivalence.py has
the long ones, and those of IPv6, for the soak.
"""

from hypothesis import settings
from support.examples import FEW
from support.kernel import needs_kernel
from support.two_worlds import TwoWorlds

pytestmark = needs_kernel


class ShortTwoWorlds(TwoWorlds):
    """A class of the state machine with settings of its own, apart from those of the long
    histories.
    """


TestShortTwoWorlds = ShortTwoWorlds.TestCase
TestShortTwoWorlds.settings = settings(
    settings.default, max_examples=2 * FEW, stateful_step_count=10
)
