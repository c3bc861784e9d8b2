"""The parts of tools/experiment_position.py."""
