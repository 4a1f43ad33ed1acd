"""Compiled twins of ops: the only place that knows the compiler."""

from qkv.kernels.host import thread_choice

thread_choice()  # before any kernel imports the compiler, which then fixes how many threads it can start
