"""The parts of tools/analysis_tools/zoo_table.py."""
