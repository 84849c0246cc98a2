"""zerobench: where every byte of a DeepSpeed ZeRO training run goes, and how fast it runs."""

__version__ = "0.1.0"
