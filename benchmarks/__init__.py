"""Benchmarks; the docstring of each module has its command."""
