"""From a file to a plan of kernels, and its steps."""
