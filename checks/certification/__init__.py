"""Certify: generate, drive, minimise, explain, report, replay."""
