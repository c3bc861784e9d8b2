"""How far attention looks."""
