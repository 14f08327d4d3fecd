"""What is looked at before anything is started (`run`)."""
