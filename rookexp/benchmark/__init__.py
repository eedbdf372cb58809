"""`python -m rookexp.bench`: rookexp's step and TRL's on the same work, each side in its own process."""
