"""What other hosts say and save, brought home (`fetch`)."""
