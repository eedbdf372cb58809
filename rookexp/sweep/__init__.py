"""Sweeps: our Hydra sweeper over Optuna, what its jobs know of it, and the files that it writes."""
