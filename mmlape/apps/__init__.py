"""Own images in, answers out: training on a folder of images, prediction, files for other runtimes, a page."""
