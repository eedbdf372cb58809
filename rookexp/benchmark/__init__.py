"""`python -m rookexp.bench`: our step and TRL's on the same work, each side in a process of its own."""
