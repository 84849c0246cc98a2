"""Turn a sweep file, a plan or a DeepSpeed configuration into trials."""
