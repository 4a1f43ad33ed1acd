"""How much memory this machine has."""

import os
from pathlib import Path

from qkv.errors import PlanError

CONTROL_GROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where Linux says what a container may use: version 2 and version 1 of control groups."""


def machine_memory(limits: tuple[Path, ...] = CONTROL_GROUP_LIMITS) -> int:
    """Return the bytes of this machine's memory, or of what its container may use of it.

    Raises
    ------
    PlanError
        If the system does not say.
    """
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        raise PlanError(
            "this system does not say how much memory it has; give memory=, such as 16GiB"
        ) from None
    return min([physical, *(limit for limit in map(_limit, limits) if limit is not None)])


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) > 0 else None
