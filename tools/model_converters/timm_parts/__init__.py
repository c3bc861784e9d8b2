"""The parts of tools/model_converters/timm_vits.py."""
