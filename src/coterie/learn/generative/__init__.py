"""Generators and the losses that they are trained with; nothing here knows of federation, or of attacks."""
