"""What a network learned about position: correlations, tables, Gabor fits, kinds of channels, scores."""
