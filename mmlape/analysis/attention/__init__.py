"""How far attention looks, and where the class token does."""
