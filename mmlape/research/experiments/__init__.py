"""The experiments of tools/experiment.py and tools/experiments."""
