"""heet-elastic: elastic training on mixed GPUs as a plug-in for plain torchrun."""

__version__ = "0.1.0"
