"""Research tools for papers: figures, robustness, pre-training, their data sets, experiments, the demo."""
