"""Sweeps: our Hydra sweeper over Optuna, what its jobs know of it, and what it leaves to read."""
