"""Questions about all recorded sessions of a user: which there are, what is due, how forecasts came out."""
