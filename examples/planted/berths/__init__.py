"""Bookings of berths for a harbour office."""
