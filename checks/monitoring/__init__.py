"""Is every step of a recorded run allowed by the text?"""
