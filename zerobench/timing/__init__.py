"""How long a step is expected to take: closed forms for kernels and links, by rates fitted to published runs."""
