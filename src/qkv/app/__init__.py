"""Thin shells around the library: parse, call, show."""
