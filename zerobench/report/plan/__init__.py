"""What `zerobench plan` says of its predictions."""
