"""The frontend's side of a run's machines: this one, and others over SSH (`machines`)."""
