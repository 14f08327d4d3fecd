"""The project brought to other hosts and set up there (`hosts`)."""
