"""The experiments of tools/experiment*.py."""
