"""The parts of tools/demo.py."""
