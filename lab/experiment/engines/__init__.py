"""Where the members of a run do their local work: in the run's process, or in Ray's actors."""
