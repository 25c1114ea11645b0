"""Beside another program: its routes are those that it would have without hostrouting, but for the
remainders.

The oracle is a second namespace, in which the same program does the same, and hostrouting nothing.
"""

from contextlib import ExitStack

import pytest
from support.needs import needs
from support.shadow_lives import Life

pytestmark = needs("kernel")


def lead(seed: int, cycles: int) -> None:
    with ExitStack() as stack:
        life = Life.of_seed(seed, stack)
        for number in range(cycles):
            try:
                life.cycle()
            except BaseException as error:
                error.args = (
                    "\n".join(
                        [*map(str, error.args), f"seed {seed}, cycle {number}:", *life.history]
                    ),
                )
                raise


def test_a_life() -> None:
    """A sample of the soak run."""
    lead(1, 25)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 9))
def test_lives(seed: int) -> None:
    """In 3,500 cycles no route of the other program is lost, too many or at another place, and no
    reset fails.
    """
    lead(seed, 500)
