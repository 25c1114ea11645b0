"""Images, and other roots that are not a machine's own: `hostrouting --root` works on them."""

from pathlib import Path


def make_image(root: Path) -> Path:
    """Make an image with the programs that the units of a boot run, and return it."""
    (programs := root / "usr/bin").mkdir(parents=True, exist_ok=True)
    for name in "bash", "ip", "flock", "nsenter", "setpriv", "python3":
        (programs / name).touch(mode=0o755)
    return root
