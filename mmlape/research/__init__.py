"""What papers are made with: figures, robustness, pre-training, their data sets, experiments, the demo."""
