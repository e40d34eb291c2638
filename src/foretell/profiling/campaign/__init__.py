"""A plan measured until the time is over, killed and resumed at any moment."""
