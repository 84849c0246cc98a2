"""Why a trial took what it took, and why two differ, in sentences and arithmetic."""
