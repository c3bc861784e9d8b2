"""How a block runs: compiled, recomputed, without autocast; and what we ask PyTorch about a call (``tracing``)."""
