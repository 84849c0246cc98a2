"""The clock: seconds of a step whose issue order was recorded, replayed at the rates of a GPU, its host and links."""
