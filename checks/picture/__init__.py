"""A trace as one HTML page."""
