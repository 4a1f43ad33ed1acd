"""Transformer attention you can read, see, measure and run."""
