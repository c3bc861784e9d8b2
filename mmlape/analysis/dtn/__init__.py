"""What DTN learned, and what it does to tokens: maps, ratios, lengths, principal components."""
