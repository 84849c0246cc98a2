"""How fast a step can be at best: counted FLOPs and bytes over the rates of datasheets."""
