"""Export runs: tidy pandas frames, CSV and JSON, and the files of other tools."""
