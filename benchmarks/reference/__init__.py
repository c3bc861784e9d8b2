"""Plain implementations of published maths, for timing and comparison. Not part of the package."""
