"""The studies of the paper: computation, results on disk, figures."""
