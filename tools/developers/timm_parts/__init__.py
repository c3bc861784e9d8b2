"""The parts of tools/developers/timm_vits.py."""
