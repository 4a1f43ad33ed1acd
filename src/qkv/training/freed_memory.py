"""What becomes of memory between two steps that ask for the same sizes."""

import ctypes

ALLOCATED_APART, RETURNED_AT = -4, -1
"""glibc's M_MMAP_MAX and M_TRIM_THRESHOLD."""

LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have this process keep memory that it frees, for whoever asks next.

    A C library gives large arrays back to the system at once, and the system hands out pages one by one,
    each filled with zeros first. A training step frees and asks for the same arrays over and over: at 8192
    tokens of a small Llama this took 32 thousand pages and a fifth of the processor's time. The process
    stays as large as it ever was, which a step would make it again anyway.

    Returns
    -------
    bool
        Whether the C library knows how: glibc does. Where it does not, nothing changes.

    Examples
    --------
    >>> keep_freed_memory()  # doctest: +SKIP
    True
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no such function, or no library to ask by no name
        return False
    return bool(set_option(ALLOCATED_APART, 0) and set_option(RETURNED_AT, LARGEST))
