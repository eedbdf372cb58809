"""rookexp: a Hydra-configured lab bench for GRPO on small language models."""

__version__ = "0.1.0"
